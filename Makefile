# Every target sets up what it needs. Words of the form key=value go on to the command:
#   make train model=capsnet data=mnist routing.iterations=1
PYTHON ?= python3
VENV ?= .venv

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup train sweep report evaluate figures data bench test lint clean

RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
OVERRIDES = $(filter-out PYTHON=% VENV=%,$(MAKEOVERRIDES))

help: ## this list
	@echo "make <target> [key=value ...]"
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{printf "%-16s %s\n", $$1, $$2}'
	@echo
	@echo "key=value is handed to the command: groups (model=capsnet), dotted keys (routing.iterations=1), lists"
	@echo "(model.decoder=[64,128]) and new keys (+trainer.name=value). Deletions (~key) are not: use python -m."
	@echo "VENV=<folder> keeps the environment elsewhere (default .venv), PYTHON=<python> makes it (default python3)."

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; name one with PYTHON=python3.11" >&2; exit 1; }
	@echo "Setting up $(VENV): torch is large, the first time takes some minutes."
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@$(RUN) -m pip install --quiet --editable '.[dev]'
	@touch $(READY)

setup: $(READY) ## make the environment; all other targets do so by themselves

train: $(READY) ## train; without key=value: experiment=quickstart, minutes on a CPU, nothing to download
	@set -f; $(RUN) -m capsule_lab.train $(if $(filter-out train.resume=%,$(OVERRIDES)),,experiment=quickstart) $(OVERRIDES)

sweep: $(READY) ## train a paper's table: make sweep table=smoke launcher=gpus (--dry-run: only say what is to be done)
	+@set -f; $(RUN) -m capsule_lab.sweep $(if $(findstring n,$(firstword -$(MAKEFLAGS))),dry_run=true) $(OVERRIDES)

report: $(READY) ## what a table came to: make report table=smoke
	@set -f; $(RUN) -m capsule_lab.report $(OVERRIDES)

evaluate: $(READY) ## test a checkpoint: make evaluate ckpt=runs/...
	@set -f; $(RUN) -m capsule_lab.evaluate $(OVERRIDES)

figures: $(READY) ## draw the figures of a run: make figures run=runs/...
	@set -f; $(RUN) -m capsule_lab.figures $(OVERRIDES)

data: $(READY) ## fetch a data set, or render the stand-in for smallNORB: make data name=toynorb
	@set -f; $(RUN) -m capsule_lab.dataset $(OVERRIDES)

bench: $(READY) ## time training steps against a textbook implementation
	@set -f; $(RUN) -m capsule_lab.bench $(OVERRIDES)

test: $(READY) ## run the tests; PYTEST="-k resume" hands words to pytest
	@OMP_NUM_THREADS=1 $(RUN) -m pytest -n auto --dist worksteal $(PYTEST)

lint: $(READY) ## ruff, mypy, import-linter
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@$(VENV)/bin/lint-imports

clean: ## remove the environment and caches; runs and data stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build *.egg-info
