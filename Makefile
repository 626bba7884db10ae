# `make help` lists targets and words. A word is NAME=value or key=value; ARGS="..." carries all else.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON = $(shell for p in python3 python3.12 python3.11; do $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null && { echo $$p; break; }; done)
VENV  := .venv
# .ready marks the environment of a sweep; .ready-test, .ready-check and .ready-docs mark what these targets add.
READY := $(VENV)/.ready
LOCK  := requirements.lock
WORDS := $(or $(PYTHON),python3) src/capsweep/config/words.py
# A test process for each core, at most four, with one thread each; the tests of a file share one.
TESTS := OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest --maxprocesses=4 --dist=loadfile --no-loadscope-reorder

COMMANDS := sweep plan report eval train new shards ledger attach status stop doctor wandb-sync bench
.PHONY: help words setup $(COMMANDS) test test-all test-gpu soak check docs format lock clean

### use
help: ## show this list
	@$(WORDS) help $(firstword $(MAKEFILE_LIST))
# make passes the typed words on in MAKEFLAGS; a word that no target takes is refused before anything runs.
words:
	@$(WORDS) check $(MAKECMDGOALS)
setup: words $(READY) ## make the environment of a sweep in .venv; do nothing if it is up to date

# Each target runs the command of its name with the same words: make sweep ROUTING=3 is capsweep sweep ROUTING=3.
$(COMMANDS): words $(READY)
	@$(VENV)/bin/python -m capsweep --make $@ $(value ARGS)
sweep: ## run the missing cells of a sweep, then print its table: make sweep ROUTING=3
plan: ## print what a sweep would run, without running it
report: ## print the table of a sweep from its finished cells, and write it to STORAGE/reports
eval: ## evaluate finished cells further: make eval ARGS="attack ablation"
train: ## run one cell: make train routing.num_iters=1 seed=4
new: ## write the files of a new routing, loss, model, data set or sweep: make new ARGS="routing NAME"
shards: ## make the missing shards of a data set: make shards PAIRS=1000 SHARDS=600
ledger: ## list, check and remove stored cells: make ledger ARGS=ls
doctor: ## check packages, folders and devices, and say how to fix each fault
wandb-sync: ## upload the cells of STORAGE that W&B does not have
### cluster
attach: ## print the output of a sweep that runs as a job: make attach SWEEP=ablation RAY_ADDRESS=head:6379
status: ## print the state of each sweep that runs as a job: make status RAY_ADDRESS=head:6379
stop: ## stop a sweep that runs as a job; finished cells and checkpoints stay
### develop
bench: ## measure speed, each number beside the bar it must reach: make bench ARGS="routing --publish docs/performance.md"

test: words $(READY)-test ## run the tests, except slow ones and those for a GPU: make test ARGS="-n0 FILE"
	@echo "left out: tests marked slow (make test-all) and gpu (make test-gpu)"
	@$(TESTS) --numprocesses=auto -m 'not slow and not gpu' $(value ARGS)
# One process more than there are cores, because half of these tests wait for other processes.
test-all: words $(READY)-check ## run every test that needs no GPU, the slow ones included
	@echo "left out: tests marked gpu (make test-gpu)"
	@$(TESTS) --numprocesses=$$(($$(nproc) + 1)) -m 'not gpu' --hypothesis-profile=many $(value ARGS)
# Only files with GPU tests are collected, because other files import packages that a GPU host may lack.
test-gpu: words $(READY)-test ## run the tests that need a GPU, if torch sees one
	@seen=$$($(VENV)/bin/python -c 'import torch; print(torch.cuda.is_available())') && if [ "$$seen" = False ]; then echo "no GPU here"; else \
	  $(VENV)/bin/python -m pytest -m gpu $$(grep -rl --include='test_*.py' mark.gpu tests) $(value ARGS); fi
soak: words $(READY)-test ## repeat every test that kills processes 20 times (75 minutes on two cores), and write docs/soak.md
	@rm -f .soak.jsonl
	@OMP_NUM_THREADS=1 CAPSWEEP_ROUNDS=20 CAPSWEEP_SOAK_REPORT=.soak.jsonl $(VENV)/bin/python -m pytest -n2 --dist=load tests/faults/test_kills.py $(value ARGS); \
	  status=$$?; $(VENV)/bin/python tests/faults/soak_report.py .soak.jsonl > docs/soak.md; exit $$status
check: words $(READY)-check ## check formatting, lint, types, and the direction of imports
	@$(VENV)/bin/ruff format --check && $(VENV)/bin/ruff check && $(VENV)/bin/basedpyright && $(VENV)/bin/lint-imports
docs: words $(READY)-docs ## build the site of pages and reference in build/site/; to read it: python3 -m http.server -d build/site
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/python -m mkdocs build $(value ARGS)
format: words $(READY)-check ## format the code and apply the linter's safe fixes
	@$(VENV)/bin/ruff format && $(VENV)/bin/ruff check --fix

# All packages are pinned, build tools and uv included, so that a fresh install next year gives the same environment.
$(READY): pyproject.toml $(LOCK) | words
	@test -n '$(PYTHON)' || { echo 'error: Python 3.11 or 3.12 is needed; install one or name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)' >&2; exit 2; }
	@echo "setting up $(VENV) with $$($(PYTHON) --version) (once; about a minute) ..."
	@$(PYTHON) -m venv $(VENV) && $(VENV)/bin/python .ci/install.py && touch $@
$(READY)-%: $(READY)
	@echo "adding to $(VENV) what 'make $*' needs (once) ..." && $(VENV)/bin/python .ci/install.py $* && touch $@
lock: ## write requirements.lock with the newest versions that pyproject.toml allows
	@rm -rf $(VENV).lock && $(PYTHON) -m venv $(VENV).lock
	@$(VENV).lock/bin/python -m pip install -qq --editable '.[ray,wandb,search,dev]' hatchling editables setuptools wheel uv
	@$(VENV).lock/bin/python -m pip freeze --all --exclude-editable --exclude pip | sed 's/+[a-z0-9.]*$$//' > $(LOCK)
	@rm -rf $(VENV).lock
clean: ## remove the environment and caches; results under outputs/ stay
	@rm -rf $(VENV) build .pytest_cache .ruff_cache .import_linter_cache .hypothesis
