# capsweep: `make help` lists every target.
SHELL := /bin/bash
.DEFAULT_GOAL := help

TARGETS := help setup sweep plan report train new shards ledger attach status stop doctor wandb-sync test test-all test-gpu bench soak check format lock clean
.PHONY: $(TARGETS)

# A line `#: TARGETS | NAME=example | meaning` declares a name of make's command line; `make help` prints it.
DECLARED := $(shell awk -F ' *[|=] *' '/^.: [a-z]/ {n = split(substr($$1, 4), t, " "); for (i = 1; i <= n; i++) print t[i] ":" $$2}' '$(firstword $(MAKEFILE_LIST))')
names_of = $(sort $(foreach target,$(1),$(patsubst $(target):%,%,$(filter $(target):%,$(DECLARED)))))
NAMES   := $(sort $(foreach pair,$(DECLARED),$(lastword $(subst :, ,$(pair)))))
# They count where they are typed; the environment's do not.
typed = $(filter command,$(firstword $(origin $(1))))
$(foreach name,$(NAMES),$(if $(call typed,$(name)),,$(eval $(name) =)$(eval unexport $(name))))
# What may be typed for every target: variables of this file, and of the environment, which is handed on.
OTHERS  := $(call names_of,any) CAPSWEEP LOCK READY SHELL RAY_API_SERVER_ADDRESS RAY_AUTH_MODE RAY_AUTH_TOKEN \
           RAY_AUTH_TOKEN_PATH RAY_TMPDIR WANDB_API_KEY WANDB_MODE CUDA_VISIBLE_DEVICES OMP_NUM_THREADS COLUMNS NO_COLOR \
           PYTHONPATH AWS_% CAPSWEEP_% HTTP_PROXY HTTPS_PROXY
SWEEP   = ablation
PYTHON  = $(shell for p in python3 python3.12 python3.11; do $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null && { echo $$p; break; }; done)
LOCK    := requirements.lock
VENV    := .venv
READY   := $(VENV)/.ready
CAPSWEEP := $(VENV)/bin/capsweep

# One word for the shell, whatever is in it.
quoted = '$(subst ','\'',$(1))'

# Names that the targets of this command line do not take are refused; those of an outer make are its own.
GOALS   := $(or $(MAKECMDGOALS),help)
OWN     := $(call names_of,$(GOALS))
OUTER    = $(foreach word,$(shell tr '\0' '\n' < /proc/$$PPID/environ | sed -n 's/^MAKEFLAGS=//p'),$(firstword $(subst =, ,$(word))))
UNKNOWN := $(foreach name,$(filter-out $(OWN) $(OTHERS),$(.VARIABLES)),$(if $(call typed,$(name)),$(name)))
REFUSED := $(if $(and $(UNKNOWN),$(filter $(TARGETS),$(GOALS))),$(filter-out $(OUTER),$(UNKNOWN)))
define REFUSAL
import difflib, os, sys
goals, own, others, declared = (words.split() for words in sys.argv[1:5])
for typed in sys.argv[5:]:
    name, _, value = typed.partition("=")
    known = name in declared
    near = difflib.get_close_matches(name.upper(), own + others, 1)
    cure = "its names are " + ", ".join(own) if own else "it takes none"
    if name == "STORE":
        cure = "it is no more: leave it out, shards hold pixels"
    elif near and not known:
        cure = f"did you mean {near[0]}?"
    elif "ARGS" in own and not known:
        is_group = os.path.isdir(f"conf/{name.lower()}")
        text = f"{name.lower()}={value}" if is_group or name.islower() else "optim.optimizer.lr=0.1"
        cure = f'settings of a run go into ARGS="{text}", variables of the environment before make'
    verb = "is not a name of make {}" if known else "is no name that make {} takes"
    print("error:", name, verb.format(", ".join(goals)) + ";", cure, file=sys.stderr)
endef
define NEWLINE


endef
# The shell function drops newlines, so each line is a word.
refuse = $(shell printf '%s\n' $(subst $(NEWLINE),' ',$(call quoted,$(value REFUSAL))) | python3 - $(call quoted,$(GOALS)) \
         '$(OWN)' '$(OTHERS)' '$(NAMES)' $(foreach name,$(REFUSED),$(call quoted,$(name)=$(value $(name)))))
$(if $(REFUSED),$(refuse)$(error nothing was run because of $(REFUSED)))

# NAME=value on make's command line becomes --flag value, as typed; an unset or empty name adds nothing.
flag = $(if $(strip $(value $(1))),$(2) $(call quoted,$(value $(1))))
CHOICES = $(call flag,ROUTING,--routing) $(call flag,RECON,--recon) $(call flag,DATASET,--dataset) \
          $(call flag,MODEL,--model) $(call flag,ARMS,--arms) $(call flag,BASELINE,--baseline) $(call flag,SEEDS,--seeds) \
          $(call flag,EPOCHS,--epochs) $(call flag,BATCH,--batch) $(call flag,RERUN,--rerun) \
          $(call flag,ZIP,--zip) $(call flag,EXCLUDE,--exclude) $(call flag,METRIC,--metric) \
          $(call flag,DATA_DIR,--data-dir) $(call flag,STORAGE,--storage) $(call flag,LEDGER,--ledger)
DETACHING = $(if $(strip $(value DETACH)),$(if \
            $(filter-out 1,$(value DETACH)),$(error DETACH=1 submits and returns; it takes no other value),--detach))
ATTACHED = $(call quoted,$(value SWEEP)) $(CLUSTERED) $(value ARGS)
CLUSTERED = $(call flag,CLUSTER,--cluster) $(call flag,RAY_ADDRESS,--address)
RUNNING = $(CLUSTERED) $(call flag,EXECUTOR,--executor) $(call flag,SHARD,--shard) $(call flag,BUDGET,--budget) \
          $(call flag,MAX_HOURS,--max-hours) $(call flag,MAX_GPU_HOURS,--max-gpu-hours) \
          $(call flag,RETRY,--retry) $(call flag,MORE_SEEDS,--more-seeds)
SHARDING = $(if $(strip $(value DATASET)),$(call quoted,$(value DATASET)),multimnist) \
           $(call flag,PAIRS,--pairs) $(call flag,SHARDS,--shards) \
           $(call flag,STORAGE,--storage) $(call flag,DATA_DIR,--data-dir) \
           $(call flag,EXECUTOR,--executor) $(call flag,RAY_ADDRESS,--address)
# Of a report PUBLISH is 1 or nothing; of bench it names a page.
REPORTING = $(if $(strip $(value PUBLISH)),$(if \
            $(filter-out 1,$(value PUBLISH)),$(error PUBLISH=1 renews sweeps/NAME.md; it takes no other value),--publish))

help: ## show this list
	@echo "usage: make TARGET [NAME=value ...]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(call quoted,$(firstword $(MAKEFILE_LIST)))
	@echo "names, each with the targets that take it:"
	@awk -F ' [|] ' '/^#: / {t = substr($$1, 4); gsub(/ /, ", ", t); printf "  %-21s %s (%s)\n", $$2, $$3, t}' $(call quoted,$(firstword $(MAKEFILE_LIST)))
#: sweep plan report attach status stop | SWEEP=ablation | which question: a file of sweeps/
#: sweep plan report | ROUTING=1,3 | routing iterations, and names of routing variants (em, dynamic, your own), or control: no routing
#: sweep plan report | RECON=on,off | reconstruction loss: on, off, or weights, in the arms that have that axis
#: sweep plan report | SEEDS=3 | how many seeds, or which: 0,1,7
#: sweep plan report shards | DATASET=mnist | a file of conf/dataset, or several; of shards a file of data_prep
#: sweep plan report | MODEL=capsnet | the model of every arm but a baseline of another network, or several
#: sweep plan report | ARMS=capsnet | keep these arms; the baseline stays
#: sweep plan report | BASELINE=capsnet | the arm that differences are to, instead of the sweep file's
#: sweep plan report | EPOCHS=5 | epochs of every cell
#: sweep plan report | BATCH=64 | batch size of every cell
#: sweep plan report | ZIP=a,b | axes that move together instead of spanning a grid
#: sweep plan report | EXCLUDE="a=1 b=2" | leave out the places that have all of these
#: sweep plan report | METRIC=test/loss | another metric for the table than the sweep file's
#: sweep plan report | RERUN=stale | never (default), stale: also cells that other code made, or always
#: sweep plan report train shards ledger doctor | DATA_DIR=path | where the data sets are; default STORAGE/data
#: sweep plan report train shards ledger doctor wandb-sync bench | STORAGE=path | where results go; default outputs
#: sweep plan report ledger wandb-sync | LEDGER=path | where finished cells are: a folder or s3://bucket/folder; default STORAGE/ledger
#: sweep plan report train new shards ledger attach status stop wandb-sync test test-all test-gpu bench soak | ARGS="a=1 b=2,3" | Hydra overrides and options; a list is an axis
#: sweep shards | EXECUTOR=local | ray (default), local: in this process, without Ray, or array: with SHARD
#: sweep | SHARD=2/8 | with EXECUTOR=array: this job's part of the cells
#: sweep | BUDGET=9m | start only cells that the estimate says will end in time (90s, 9m, 2h)
#: sweep | MAX_HOURS=8 | then what runs leaves at its next epoch end, its checkpoint kept; the same command goes on
#: sweep | MAX_GPU_HOURS=40 | the same, of the GPU time that the cells of this command have taken
#: sweep | RETRY=failed | also cells that the same code failed before
#: sweep | MORE_SEEDS=9 | up to so many seeds where the order of two rows is undecided
#: sweep plan attach status stop | CLUSTER=slurm | a file of conf/cluster: local (default), address, slurm
#: sweep plan shards attach status stop | RAY_ADDRESS=head:6379 | a running Ray cluster, which is CLUSTER=address; of jobs also http://head:8265
#: sweep | DETACH=1 | submit the sweep to the cluster and return; see attach, status, stop
#: report | PUBLISH=1 | renew NAME.md beside the sweep's file, between its markers
#: bench | PUBLISH=docs/performance.md | renew the sections of this page
#: shards | PAIRS=1000 | examples for each digit of training and test
#: shards | SHARDS=600 | files of the training split; default: one for 100,000 examples
#: any | PYTHON=python3.12 | makes the environment; default: the first Python 3.11 or 3.12
#: any | VENV=.venv | where the environment is

setup: $(READY) ## make the environment in .venv (a no-op when it is up to date)

sweep: $(READY) ## run what is missing of a sweep and print its table: make sweep ROUTING=3
	@$(CAPSWEEP) sweep $(call quoted,$(value SWEEP)) $(CHOICES) $(RUNNING) $(DETACHING) $(value ARGS)

plan: $(READY) ## print what a sweep would run, and run nothing
	@$(CAPSWEEP) plan $(call quoted,$(value SWEEP)) $(CHOICES) $(CLUSTERED) $(value ARGS)

report: $(READY) ## the table of a sweep from finished cells, and its files in STORAGE/reports
	@$(CAPSWEEP) report $(call quoted,$(value SWEEP)) $(CHOICES) $(REPORTING) $(value ARGS)

train: $(READY) ## run one cell: make train ARGS="routing.num_iters=1 seed=4"
	@$(CAPSWEEP) train $(value ARGS)

new: $(READY) ## write the files of a routing, loss, model or data set of your own: make new ARGS="routing NAME"
	@$(CAPSWEEP) new $(value ARGS)

shards: $(READY) ## make what is missing of a data set in STORAGE: make shards PAIRS=1000 SHARDS=600
	@$(CAPSWEEP) data make $(SHARDING) $(value ARGS)

ledger: $(READY) ## look at cells and keep the ledger in order: make ledger ARGS="ls"
	@$(CAPSWEEP) ledger $(firstword $(value ARGS)) $(call flag,LEDGER,--ledger) $(wordlist 2,$(words $(value ARGS)),$(value ARGS))

attach: $(READY) ## print the lines of a sweep that runs as a job: make attach SWEEP=ablation RAY_ADDRESS=head:6379
	@$(CAPSWEEP) attach $(ATTACHED)

status: $(READY) ## what sweeps of a cluster are doing: make status RAY_ADDRESS=head:6379
	@$(CAPSWEEP) status $(if $(call typed,SWEEP),$(call quoted,$(value SWEEP))) $(CLUSTERED) $(value ARGS)

stop: $(READY) ## end a sweep that runs as a job; what has finished stays
	@$(CAPSWEEP) stop $(ATTACHED)

doctor: $(READY) ## print versions and places, and what to do about each fault
	@$(CAPSWEEP) doctor

wandb-sync: $(READY) ## upload the cells of STORAGE that W&B does not have: make wandb-sync ARGS="--jobs 8"
	@$(CAPSWEEP) wandb sync $(call flag,STORAGE,--storage) $(call flag,LEDGER,--ledger) $(value ARGS)

# A test process for each core, four at most, since some tests start Ray clusters; one more where half of
# the tests wait for other processes. A file stays whole. Each has one thread: where every process takes all
# cores for its operations, they wait for each other.
TESTING := --maxprocesses=4 --dist=loadfile --no-loadscope-reorder --numprocesses

test: $(READY) ## run the tests, but for what takes long or needs a GPU: make test ARGS="-n0 FILE" in one process
	@echo "left out: tests marked slow (make test-all) and gpu (make test-gpu)"
	@OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest $(TESTING)=auto -m 'not slow and not gpu' $(value ARGS)

test-all: $(READY) ## run every test that needs no GPU: also clusters, kills, and laws with many examples
	@echo "left out: tests marked gpu (make test-gpu)"
	@OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest $(TESTING)=$$(($$(nproc) + 1)) -m 'not gpu' --hypothesis-profile=many $(value ARGS)

# Of these files alone, since those of others import what a GPU host may lack.
test-gpu: $(READY) ## run the tests that need a GPU, where torch sees one
	@seen=$$($(VENV)/bin/python -c 'import torch; print(torch.cuda.is_available())') && if [ "$$seen" = False ]; then echo "no GPU here"; else \
	  $(VENV)/bin/python -m pytest -m gpu $$(grep -rl --include='test_*.py' mark.gpu tests) $(value ARGS); fi

bench: $(READY) ## measure, every number beside its bar: make bench ARGS=routing PUBLISH=docs/performance.md
	@$(CAPSWEEP) bench $(call flag,STORAGE,--storage) $(call flag,PUBLISH,--publish) $(value ARGS)

soak: $(READY) ## twenty rounds of every kill, two at a time, in 75 minutes on two cores; writes docs/soak.md
	@rm -f .soak.jsonl
	@OMP_NUM_THREADS=1 CAPSWEEP_ROUNDS=20 CAPSWEEP_SOAK_REPORT=.soak.jsonl $(VENV)/bin/python -m pytest \
	  --numprocesses=2 --dist=load tests/faults/test_kills.py $(value ARGS); \
	  status=$$?; $(VENV)/bin/python tests/faults/soak_report.py .soak.jsonl > docs/soak.md; exit $$status

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
	@test -n $(call quoted,$(PYTHON)) || { echo "error: Python 3.11 or 3.12 is needed; install one or name it: make PYTHON=/path/to/python3.12" $(call quoted,$(MAKECMDGOALS)) >&2; exit 2; }
	@echo "setting up $(VENV) with $$($(call quoted,$(PYTHON)) --version) (once; about two minutes) ..."
	@$(call quoted,$(PYTHON)) -m venv $(VENV)
	@PIP_CONSTRAINT=$(call quoted,$(CURDIR)/$(LOCK)) PIP_BUILD_CONSTRAINT=$(call quoted,$(CURDIR)/$(LOCK)) $(VENV)/bin/python -m pip install -qq --disable-pip-version-check --editable '.[ray,slurm,wandb,search,dev]'
	@touch $@

lock: ## write requirements.lock from a fresh environment, at the newest versions pyproject.toml allows
	@rm -rf $(VENV).lock && $(call quoted,$(PYTHON)) -m venv $(VENV).lock
	@$(VENV).lock/bin/python -m pip install -qq --editable '.[ray,slurm,wandb,search,dev]' hatchling editables setuptools wheel
	@$(VENV).lock/bin/python -m pip freeze --all --exclude-editable --exclude pip | sed 's/+[a-z0-9.]*$$//' > $(LOCK)
	@rm -rf $(VENV).lock

clean: ## remove the environment and caches; results under outputs/ stay
	@rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache .hypothesis
