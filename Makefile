# capsweep: `make help` lists every door.
SHELL := /bin/bash
.DEFAULT_GOAL := help

SWEEP   ?= ablation
PYTHON  ?= $(shell for p in python3 python3.12 python3.11; do $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null && { echo $$p; break; }; done)
LOCK    := requirements.lock
VENV    := .venv
READY   := $(VENV)/.ready
CAPSWEEP := $(VENV)/bin/capsweep

# NAME=value on make's command line becomes --flag value; an unset or empty name adds nothing.
flag = $(if $(strip $($(1))),$(2) '$(subst ','\'',$($(1)))')
CHOICES = $(call flag,ROUTING,--routing) $(call flag,DATASET,--dataset) $(call flag,SEEDS,--seeds) \
          $(call flag,EPOCHS,--epochs) $(call flag,DATA_DIR,--data-dir) $(call flag,STORAGE,--storage)
RUNNING = $(call flag,EXECUTOR,--executor) $(call flag,RAY_ADDRESS,--address)

.PHONY: help setup sweep plan report train doctor wandb-sync test check format lock clean

help: ## show this list
	@echo "usage: make TARGET [NAME=value ...]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo "names understood by sweep, plan and report:"
	@awk -F '## ' '/^#: / {sub(/^#: /, ""); print "  " $$0}' $(firstword $(MAKEFILE_LIST))
#: SWEEP=ablation     which question: a file of sweeps/
#: ROUTING=1,3        routing iterations, or names of routing variants (dynamic)
#: SEEDS=3            how many seeds, or which: 0,1,7
#: DATASET=mnist      digits | mnist | fashion_mnist, or several
#: EPOCHS=5           epochs of every cell
#: DATA_DIR=path      where the data sets are; default STORAGE/data
#: STORAGE=path       where results go; default outputs
#: EXECUTOR=local     ray (default) | local: in this process, without Ray
#: RAY_ADDRESS=...    a running Ray cluster; default: a local one
#: ARGS="a=1 b=2"     further Hydra overrides

setup: $(READY) ## make the environment in .venv (a no-op when it is up to date)

sweep: $(READY) ## run what is missing of a sweep and print its table: make sweep ROUTING=3
	@$(CAPSWEEP) sweep '$(SWEEP)' $(CHOICES) $(RUNNING) $(ARGS)

plan: $(READY) ## print what a sweep would run, and run nothing
	@$(CAPSWEEP) plan '$(SWEEP)' $(CHOICES) $(ARGS)

report: $(READY) ## print the table of a sweep from finished cells
	@$(CAPSWEEP) report '$(SWEEP)' $(CHOICES) $(ARGS)

train: $(READY) ## run one cell: make train ARGS="routing.num_iters=1 seed=4"
	@$(CAPSWEEP) train $(ARGS)

doctor: $(READY) ## print versions and places, and what to do about each fault
	@$(CAPSWEEP) doctor

wandb-sync: $(READY) ## upload the offline W&B runs of STORAGE
	@$(CAPSWEEP) wandb-sync $(call flag,STORAGE,--storage)

test: $(READY) ## run the test suite: make test ARGS="-m 'not slow'"
	@$(VENV)/bin/python -m pytest $(ARGS)

check: $(READY) ## formatting, lint, types, and the direction of imports
	@$(VENV)/bin/ruff format --check
	@$(VENV)/bin/ruff check
	@$(VENV)/bin/basedpyright
	@$(VENV)/bin/lint-imports

format: $(READY) ## format the code and apply the linter's safe fixes
	@$(VENV)/bin/ruff format
	@$(VENV)/bin/ruff check --fix

# The whole tree is pinned, build tools included, so that a fresh install next year gives the same
# environment. torch's local version (+cpu) is left open: pip takes whatever build it is offered.
$(READY): pyproject.toml $(LOCK)
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or 3.12 is needed; install one or name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version) (once; about two minutes) ..."
	@$(PYTHON) -m venv $(VENV)
	@PIP_CONSTRAINT='$(CURDIR)/$(LOCK)' PIP_BUILD_CONSTRAINT='$(CURDIR)/$(LOCK)' $(VENV)/bin/python -m pip install -qq --disable-pip-version-check --editable '.[ray,wandb,dev]'
	@touch $@

lock: ## write requirements.lock from a fresh environment, at the newest versions pyproject.toml allows
	@rm -rf $(VENV).lock && $(PYTHON) -m venv $(VENV).lock
	@$(VENV).lock/bin/python -m pip install -qq --editable '.[ray,wandb,dev]' hatchling editables setuptools wheel
	@$(VENV).lock/bin/python -m pip freeze --all --exclude-editable --exclude pip | sed 's/+[a-z0-9.]*$$//' > $(LOCK)
	@rm -rf $(VENV).lock

clean: ## remove the environment and caches; results under outputs/ stay
	@rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache .hypothesis
