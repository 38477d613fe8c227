#!/usr/bin/env bash
# The cloud from an empty project to a study's report, and back to nothing, with no account and nothing to pay:
#
#     taetpu dev fake-cloud -- bash examples/cloud_walkthrough.sh
#
# The commands are those of the real cloud, and Google's own client libraries send them; what answers is a fake on this
# machine, whose virtual machines are processes that ssh logs into. docs/cloud.md says what each step is for, and what
# the real cloud needs besides.
set -euo pipefail

if [ -z "${TAETPU_FAKE_CLOUD:-}" ]; then
  echo "no fake cloud runs here: taetpu dev fake-cloud -- bash $0" >&2
  exit 2
fi

step() { printf '\n== %s\n' "$*"; }
tpu() { # shows a command before it gives it
  printf '$ taetpu'
  printf ' %q' "$@"
  printf '\n'
  command taetpu "$@"
}

# A project of its own, in a folder that is removed in the end; settings of yours do not get in.
for name in OWNER STACK ZONES BACKEND BUCKET REGION REPOSITORY IMAGE MAX_USD ROOT; do unset "TAETPU_$name"; done
folder=$(mktemp -d "${TMPDIR:-/tmp}/taetpu-walkthrough-XXXXXX")
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/my-project" && cd "$folder/my-project"

step "1. Settings, and whether everything is there. The project's name is in the environment here."
tpu doctor --init
tpu doctor

step "2. Where a v6e-8 is published, what the project may have of it, and what it costs; written into taetpu.toml."
tpu tpu zones --type v6e-8 --spot --region us-east5 --write --yes

step "3. A bucket beside the machines, where studies stay when machines go."
tpu bucket create walkthrough-studies --write --yes
tpu bucket status

step "4. An image of this package, by Cloud Build. Without one, jobs run in an environment on the machine, as here."
tpu image build --type v6e-8 --torch auto --yes
tpu image list

step "5. A machine: first what it would be and cost, then the machine. The same command again finds it."
tpu tpu up --type v6e-8 --spot --max-usd 50 --dry-run
tpu tpu up --type v6e-8 --spot --max-usd 50 --yes
tpu tpu up --type v6e-8 --spot --max-usd 50 --yes
tpu tpu list

step "6. Code of yours on it: copied, run, read, and removed again."
echo 'import os, sys; print("worker", os.environ["TPU_WORKER_ID"], "was told", sys.argv[1:])' >hello.py
tpu tpu sync
tpu tpu run python hello.py --lr 3e-4
tpu tpu run --detach python hello.py --goes-on-without-this-laptop
tpu tpu logs --follow
tpu dev run-all hello.py --copied-run-and-removed
tpu tpu ssh -- uname -s
tpu tpu status
tpu tpu clean

step "7. What it has cost, and its end."
tpu tpu cost
tpu tpu down --yes

step "8. A study, shortened, on a spot v5e-8 that is taken away in the middle of it. Nobody has to do anything."
cat >study.yaml <<'STUDY'
study: which-parts
base:
  task: {kind: copy, seq_len: 16}
  model: {dim: 16, num_layers: 2, mixer: {kind: attention, num_heads: 2}}
  train: {steps: 1200, batch_size: 16, eval_every: 200, checkpoint: 200, sample: none}
seeds: 2
arms:
  no-ffn: {model.ffn: none}
measure: {primary: val/loss}
STUDY
touch log
tpu run study.yaml --on tpu --tpu study --type v5e-8 --zone us-west4-a --spot --yes > >(tee log) 2>&1 &
training=$!
until grep -q "step 400" log; do
  kill -0 $training
  sleep 0.2
done
tpu dev preempt study
wait $training
tpu status gs://walkthrough-studies/studies
ls cloud/which-parts/report

step "9. Back to nothing. A bucket with results in it goes only when that is said."
tpu tpu list
tpu bucket delete --yes --force
tpu image delete --all --repository --yes
tpu dev left
