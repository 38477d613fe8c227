# Everything runs in .venv, which every target sets up first. PYTHON chooses the interpreter it is made with.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
CLOUD := tests/cloud tests/cli/test_on_tpu.py tests/cli/test_tpu.py tests/cli/test_tpu_hosts.py \
  tests/examples/test_cloud_walkthrough.py tests/store/test_gcs.py

# Bytecode is written even if the environment forbids it. Otherwise every process would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo cloud-demo test slow alone rest cloud nightly lint site format install wheel release clean
.DEFAULT_GOAL := test

demo: .venv/.demo        ## run the quick study and say where its report is
	$(BIN)/taetpu demo

cloud-demo: install      ## the cloud commands, from zones to teardown, through gcloud against the tests' fake of Google Cloud
	$(BIN)/python -m tests.fake_google.demo

test: install            ## the default tests, without those against the fake cloud
	QUICK=1 $(BIN)/python -m pytest -n auto --dist worksteal --durations=20 $(CLOUD:%=--ignore=%)

slow:                    ## the tests that take longer
	$(MAKE) alone
	$(MAKE) rest

alone: install           ## what is timed, the quick study among it, with nothing beside it
	OPTIMISED=1 $(BIN)/python -m pytest -m alone --durations=20

rest: install            ## slow tests near the last day's commits, then a sixth that changes daily (tests/slow_tests.py)
	NEAR_MINUTES=6 REST_MINUTES=9 SHARE=6 $(BIN)/python -m pytest -n auto --dist loadgroup --no-loadscope-reorder \
	  --durations=20 -m 'slow and not nightly' $(CLOUD:%=--ignore=%)

cloud: install           ## the tests against the fake cloud, which often wait; of the long ones a sixth
	SHARE=6 $(BIN)/python -m pytest -n 4 --dist loadgroup --durations=20 -m 'not alone and not nightly' $(CLOUD)

nightly: install         ## the tests that take minutes, and all others with the programs that users run
	OPTIMISED=1 $(BIN)/python -m pytest -n auto --dist loadgroup -m 'not alone and not nightly'
	OPTIMISED=1 $(BIN)/python -m pytest -n auto --dist worksteal -m nightly

lint: install            ## ruff, spelling, pyright, import directions, bandit
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m tests.bandit_findings

site: install            ## the documentation, in build/site; fails for links to nothing and pages that need a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

wheel: install           ## the package as a file in dist, and the notes of its version
	rm -rf dist && $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	awk '/^## /{n++} n==1' CHANGELOG.md > dist/notes.md

release: wheel           ## the tag names the version, and the wheel alone runs the demo; needs the network
	test "$$(git describe --tags --exact-match)" = "v$$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)"
	$(PYTHON) -m venv --clear build/release
	build/release/bin/pip install --quiet --disable-pip-version-check -c requirements.lock dist/taetpu-*.whl
	cd build/release && bin/taetpu demo

format: install
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

install: $(STAMP)

# Users need the pinned libraries alone; developers the tools too. requirements.lock pins both.
.venv/.demo: pyproject.toml requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e .
	touch $@

$(STAMP): .venv/.demo
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev,docs,bench,gcp,harness,parquet,tensorboard,trackers,ui]'
	touch $@

clean:
	rm -rf .venv build dist
