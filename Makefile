# Two commands do everything: `make results` runs the testbed to tables, figures and report; `make test` checks it all.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
PYTHON ?= python3
CORES ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)
EXPERIMENT ?= workflow/config/testbed.yaml
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help env results test lint readme clean

help: ## show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

env: $(READY) ## create the environment in .venv

$(READY): pyproject.toml envs/constraints.txt envs/setup.sh
	@PYTHON="$(PYTHON)" bash envs/setup.sh "$(VENV)"
	@touch $@

results: env ## run the default experiment: models, training, evaluation, tables, figures, report
	@"$(BIN)/python" workflow/run.py --cores $(CORES) --configfile $(EXPERIMENT) --rerun-incomplete -- all

test: env ## linters, type checker and all tests
	@PATH="$(abspath $(BIN)):$$PATH" bash tests/run.sh

readme: env ## write the generated parts of the README from the tracked tidy table
	@"$(BIN)/troll" readme README.md --runs results/testbed/runs.parquet --items results/testbed/items.parquet

lint: env ## linters and type checker only
	@PATH="$(abspath $(BIN)):$$PATH" bash tests/run.sh lint

clean: ## remove the environment and untracked results
	rm -rf "$(VENV)" .snakemake results/*/runs results/*/base results/*/data
