PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_TEST := $(VENV)/.ready-test
DOCS_VENV := .venv-docs
READY_DOCS := $(DOCS_VENV)/.ready
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Two pytest processes with one thread each are faster than one process with two threads.
WORKERS ?= 2
# Of make soak: damaged files of each kind and tenths of the configurations, and minutes of training that is killed.
TRIALS ?= 2000
MINUTES ?= 10
# Of make soak: a number for other random changes.
SEED ?= 0
# -rs prints which tests were skipped, and why.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -rs

.PHONY: help setup test test-all soak lint format types layers demo bench compat an4-seeds wheel docs pictures docker-check ascend-check clean

help:
	@echo "make test       set up .venv, then run lint, types, layers, docs and the tests"
	@echo "make test-all   the same, with the slow tests"
	@echo "make soak       hours of damaged files, random configurations and killed runs (TRIALS=2000 SEED=0 MINUTES=10)"
	@echo "make demo       run the whole recipe on a small synthesized corpus; no corpus is downloaded"
	@echo "make bench      run all benchmarks and write benchmarks/last_run.md (PEER_ENV=DIR: compare with ESPnet)"
	@echo "make compat     check which recipe configurations of an ESPnet checkout (ESPNET=DIR) can be read, built and trained"
	@echo "make an4-seeds  train AN4 with three seeds (DATA=DIR: a corpus that is already on disk)"
	@echo "make docs       build the documentation site in build/site; a broken link is an error"
	@echo "make pictures   make the pictures of the documentation, from a run of the demo (needs Chromium)"
	@echo "make docker-check  run the steps of the Dockerfile without Docker, in new environments"
	@echo "make ascend-check  names, kernels and messages against the torch-npu wheel from PyPI, without a card"
	@echo "make wheel      build the wheel and the source distribution in dist/"
	@echo "make lint | format | types | layers | clean"

setup: $(READY)

$(READY): requirements.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 10) <= sys.version_info < (3, 14) else "Python 3.10 to 3.13 is needed: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -r requirements.txt
	touch $@

# Packages that some tests compare with. Without a compiler, kenlm can't be built; its tests are skipped with a message.
$(READY_TEST): $(READY) requirements-test.txt
	@while read -r requirement; do \
	  $(PIP) install "$$requirement" || \
	  echo "======== $$requirement could not be installed: the tests that need it are SKIPPED ========"; \
	done < requirements-test.txt
	touch $@

test: lint types layers docs $(READY_TEST)
	$(PYTEST)

test-all: lint types layers docs $(READY_TEST)
	$(PYTEST) -m ''

soak: $(READY_TEST)
	TYMPAN_TRIALS=$(TRIALS) TYMPAN_SEED=$(SEED) $(PYTEST) -m '' tests/faults tests/integration/test_train_kill.py
	$(BIN)/python benchmarks/soak.py --minutes $(MINUTES)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)
	$(BIN)/mypy

layers: $(READY)
	$(BIN)/lint-imports

demo: $(READY)
	$(PIP) install --quiet -e '.[demo]'
	$(BIN)/tympan demo

bench: $(READY)
	$(BIN)/python benchmarks/run_all.py $(if $(PEER_ENV),--peer_env $(PEER_ENV))

compat: $(READY_TEST)
	@test -n "$(ESPNET)" || { echo "make compat ESPNET=DIR: a checkout of https://github.com/espnet/espnet"; exit 2; }
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/compat.py $(ESPNET)

an4-seeds: $(READY)
	egs/an4/asr1/seeds.sh $(if $(DATA),--data $(abspath $(DATA)))

# A separate environment: the API reference is made from the source, without torch and Tympan's other dependencies.
$(READY_DOCS): requirements-docs.txt
	test -x $(DOCS_VENV)/bin/python || $(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip --disable-pip-version-check install -r requirements-docs.txt
	touch $@

# Not --quiet: it hides the warnings from MkDocs' strict mode, which then passes broken links.
docs: $(READY_DOCS)
	PYTHONPATH=src NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build

pictures: $(READY)
	$(PIP) install --quiet -e '.[demo]'
	$(BIN)/python docs/_site/pictures.py demo

# Part of test-all too. The wheel (44 MB) is kept in build/ascend.
ascend-check: $(READY)
	$(PYTEST) -m '' tests/ascend tests/runtime/test_ascend.py tests/runtime/test_device.py

docker-check:
	PYTHON=$(PYTHON) tests/packaging/docker_steps.sh

wheel: $(READY)
	$(PIP) install --quiet build
	$(BIN)/python -m build

clean:
	rm -rf $(VENV) $(DOCS_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
