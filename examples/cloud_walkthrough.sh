#!/usr/bin/env bash
# The cloud commands from zones to teardown. `make cloud-demo` runs this against a fake of Google Cloud on this machine,
# where nothing is paid for. In a project of yours it works too and costs what `tpu up` says: sign in with gcloud and set
# `project` in taetpu.toml first.
set -euo pipefail

section() { printf '\n== %s\n' "$*"; }
run() { # print a command, then run it
  printf '$ taetpu'
  printf ' %q' "$@"
  printf '\n'
  taetpu "$@"
}

section "Is everything set up? Where is a v6e-8 offered, and at which rate?"
run doctor
run tpu zones --type v6e-8 --spot

section "A bucket for studies"
run bucket create --yes
run bucket status
run image list

section "A machine: the plan with the lines for gcloud, then the machine"
run tpu up --type v6e-8 --zone us-central1-b --spot --max-usd 20 --dry-run
run tpu up --type v6e-8 --zone us-central1-b --spot --max-usd 20 --yes
run tpu list

section "Your code on it"
mkdir -p code
echo 'import sys; print("arguments", sys.argv[1:])' >code/hello.py
echo 'import time; print("waiting", flush=True); time.sleep(600)' >code/wait.py
cd code
run tpu sync
run tpu run python hello.py --lr 3e-4
run tpu run --detach python wait.py
run tpu status
run tpu stop
run tpu logs
run tpu ssh nproc
run tpu clean

section "Single files"
run dev mount hello.py
run dev run hello.py --copied-and-run
run dev run-all hello.py --copied-run-and-deleted
run dev sync
run dev scrap hello.py
cd ..

section "What it costs, and its end"
run tpu cost
run tpu gc
run tpu down --yes
run tpu list

section "A study: the machine is made for it and deleted with its end"
cat >study.yaml <<'STUDY'
study: which-parts
base:
  task: {kind: copy, seq_len: 8}
  model: {dim: 8, num_layers: 1, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 20, batch_size: 8, eval_every: 20, sample: none}
seeds: 2
arms:
  no-ffn: {model.ffn: none}
measure: {primary: val/loss}
STUDY
run run study.yaml --on tpu --type v5e-8 --zone us-west4-a --spot --max-usd 20 --yes
ls cloud/which-parts/report

section "Nothing is left"
run tpu list
run bucket delete --yes
