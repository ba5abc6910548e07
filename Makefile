# Every target sets up what it needs. key=value is an override, handed on to the command:
#   make train model=capsnet data=mnist routing.iterations=1
PYTHON ?= python3
VENV ?= .venv

SHELL := /bin/sh
.DEFAULT_GOAL := help
CONFIGURATIONS := $(wildcard conf/[!_]*.yaml capsule_studies/conf/*.yaml)
COMMANDS := $(sort $(basename $(notdir $(CONFIGURATIONS))))
.PHONY: help setup own-environment $(COMMANDS) plan bench gpu claims claim costs docs test test-all campaign fuzz lint distributions clean

RUN := $(VENV)/bin/python
READY := $(VENV)/.ready
OVERRIDES = $(filter-out PYTHON=% VENV=% TORCH=%,$(MAKEOVERRIDES))
BACKEND = $(if $(TORCH),--torch-backend=$(TORCH))

help: ## this list
	@echo "make <target> [key=value ...]"
	@echo
	@for file in $(CONFIGURATIONS); do printf '  make %-10s %s\n' $$(basename $$file .yaml) "$$(sed -n '1s/^# //p' $$file)"; done | sort
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{printf "%-17s %s\n", $$1, $$2}'
	@echo
	@echo "key=value is handed to the command: groups (model=capsnet), dotted keys (routing.iterations=1), lists"
	@echo "(model.decoder=[64,128]) and new keys (+trainer.name=value). Deletions (~key) are not: use capsule-lab;"
	@echo "group=none leaves out a logger, callbacks, an experiment, a debug preset or the routing."
	@echo "make train without key=value is experiment=quickstart: minutes on a CPU, nothing to download."
	@echo "make --dry-run sweep table=<name> shows the runs of a table."
	@echo "VENV=<folder> keeps the environment elsewhere (default .venv), PYTHON=<python> makes it (default python3)."

$(READY): pyproject.toml capsule_studies/pyproject.toml toynorb/pyproject.toml tested-versions.txt | own-environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; name one with PYTHON=python3.11" >&2; exit 1; }
	@echo "Setting up $(VENV): torch is large, the first time takes some minutes."
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@if command -v uv >/dev/null; then \
	    uv pip install --quiet --python $(RUN) $(BACKEND) --constraint tested-versions.txt --editable '.[dev]' --editable ./toynorb --editable ./capsule_studies; \
	elif [ "$(TORCH)" ]; then \
	    echo "TORCH=$(TORCH) needs uv; without it, install torch and torchvision in $(VENV) with the command that PyTorch's page Get started shows for CPU, then run make setup" >&2; exit 1; \
	else \
	    $(RUN) -m pip install --quiet --constraint tested-versions.txt --editable '.[dev]' --editable ./toynorb --editable ./capsule_studies; \
	fi
	@echo "$(CURDIR)" > $(READY)

# VENV may be shared between clones by mistake: an environment runs the code of the clone that it was made for
own-environment:
	@test ! -s $(READY) || test "$$(cat $(READY))" = "$(CURDIR)" || { echo "$(VENV) is the environment of $$(cat $(READY)); name another with VENV=<folder>, or remove $(READY) to install this clone in it" >&2; exit 1; }

setup: $(READY) ## make the environment, as all other targets do; TORCH=cpu: without the packages of GPUs

# one target for each conf/<command>.yaml
$(COMMANDS): $(READY)
	$(EVEN_IN_DRY_RUN)@set -f; $(RUN) -m capsule_lab $@ $(DEFAULT) $(OVERRIDES)

train: DEFAULT = $(if $(filter-out train.resume=%,$(OVERRIDES)),,experiment=quickstart)
sweep: DEFAULT = $(if $(findstring n,$(firstword -$(MAKEFLAGS))),dry_run=true)
sweep: EVEN_IN_DRY_RUN = +

plan: $(READY) ## seeds and hours that find a difference: table=routing_pays difference=0.1 power=0.9
	@set -f; $(RUN) -m capsule_lab report $(OVERRIDES)

bench: $(READY) ## time layers and training steps beside textbook forms; models=[] rounds=9
	@set -f; $(RUN) -m benchmarks $(OVERRIDES)

gpu: $(READY) ## time them on a GPU that is lent for minutes; limit=540 out=gpu.json
	@set -f; $(RUN) -m benchmarks.gpu $(OVERRIDES)

DOCS := $(VENV)/.ready-docs
$(DOCS): $(READY)
	@if command -v uv >/dev/null; then uv pip install --quiet --python $(RUN) --constraint tested-versions.txt --editable '.[docs]'; \
	else $(RUN) -m pip install --quiet --constraint tested-versions.txt --editable '.[docs]'; fi
	@touch $(DOCS)

docs: $(DOCS) ## build the documentation site in build/site, and execute its notebooks
	@OMP_NUM_THREADS=1 $(RUN) -m sphinx --quiet --fail-on-warning --keep-going -c docs -d build/doctrees . build/site
	@echo "open build/site/index.html"

claims: $(READY) ## write docs/claims.md and its short form in README.md from results/
	@$(RUN) -m capsule_studies.claims

claim: $(READY) ## recompute a claim from its records: id=C-001; train=true trains its rows with new seeds
	@set -f; $(RUN) -m capsule_studies.claims.claim $(OVERRIDES)

costs: $(READY) ## steps and hours of each experiment, from the records in results/
	@$(RUN) -m tests.helpers.costs

test test-all: $(READY)
	@OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(RUN) -m pytest -n auto --dist worksteal $(TIER) $(PYTEST)

test: ## run the tests, in minutes; PYTEST="-k resume" is handed to pytest
test-all: TIER = -m "not slow and not slurm and not gpu"
test-all: ## whole fits and sweeps as well; PYTEST=--every-shape checks shapes in every test

campaign: $(READY) ## kill, corrupt and starve runs, and compare results; minutes=30 seed=0 only=sweeps
	@set -f; OMP_NUM_THREADS=1 $(RUN) -m tests.campaign $(OVERRIDES)

fuzz: $(READY) ## read generated files of every format and count the answers; examples=20000 of each
	@CAPSULE_LAB_EXAMPLES=$(or $(examples),5000) OMP_NUM_THREADS=1 $(RUN) -m pytest -q --hypothesis-show-statistics tests/test_parsers.py $(PYTEST)

lint: $(READY) ## ruff, mypy, import-linter, the schema of workflow files
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy
	@$(VENV)/bin/lint-imports
	@$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

distributions: $(READY) ## build the wheels of the three packages in build/distributions
	@for folder in . toynorb capsule_studies; do \
	    (cd $$folder && $(abspath $(RUN)) -m hatchling build -t wheel -d "$(CURDIR)/build/distributions") || exit 1; \
	done

clean: ## remove the environment and caches; runs and data stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build *.egg-info
