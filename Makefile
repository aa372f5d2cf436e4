# Two commands do everything: `make results` runs the testbed to tables, figures and report; `make test` checks it all.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
PYTHON ?= python3
CORES ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)
EXPERIMENT ?= workflow/config/testbed.yaml
# Other seeds than the experiment file's: `make results SEEDS=0,1,2,3,4` adds what is missing.
SEEDS ?=
# Jobs here are alike: the default scheduler would solve an integer program at each choice, and look again every second.
SCHEDULING := --scheduler greedy --max-jobs-per-timespan 1000/3s
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# vLLM pins versions that the SLURM plugin does not share: it gets an environment beside the other.
VLLM_READY := .venv-vllm/.ready

.PHONY: help env vllm results test lint readme docs coverage check-results clean

help: ## show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

env: $(READY) ## create the environment in .venv

$(READY): pyproject.toml envs/constraints.txt envs/setup.sh
	@PYTHON="$(PYTHON)" bash envs/setup.sh "$(VENV)"
	@touch $@

vllm: $(VLLM_READY) ## create the environment of training and sampling with vLLM, in .venv-vllm

$(VLLM_READY): pyproject.toml envs/constraints-vllm.txt envs/setup.sh
	@PYTHON="$(PYTHON)" VLLM=1 bash envs/setup.sh "$(@D)"
	@touch $@

results: env ## run the default experiment: models, training, evaluation, tables, figures, report
	@"$(BIN)/python" workflow/run.py --cores $(CORES) $(SCHEDULING) --configfile $(EXPERIMENT) $(if $(SEEDS),--config 'seeds=[$(SEEDS)]') --rerun-incomplete -- all

test: env ## linters, type checker and all tests
	@PATH="$(abspath $(BIN)):$$PATH" bash tests/run.sh

readme: env ## write the generated parts of the README from the tracked tidy table
	@"$(BIN)/troll" readme README.md --results results/testbed --ledger workflow/config/claims.yaml \
		$(addprefix --evidence ,$(filter-out results/testbed/,$(dir $(wildcard results/testbed*/plan.json))))

coverage: env ## measure what the tests cover; takes longer than the tests alone
	@PATH="$(abspath $(BIN)):$$PATH" OMP_NUM_THREADS=1 coverage run -m pytest -q
	@"$(BIN)/coverage" combine -q && "$(BIN)/coverage" report

docs: env ## write what is generated from the code: the JSON schema, docs/configuration.md, conda's files
	@"$(BIN)/python" envs/write_conda.py
	@for file in workflow/schemas/experiment.schema.json docs/configuration.md; do "$(BIN)/troll" schema --out "$$file"; done

check-results: env ## make the tracked tables and figures again from the tracked tidy tables and compare
	@for plan in results/*/plan.json; do "$(BIN)/troll" check-results "$$(dirname "$$plan")" --ledger workflow/config/claims.yaml; done

lint: env ## linters and type checker only
	@PATH="$(abspath $(BIN)):$$PATH" bash tests/run.sh lint

clean: ## remove the environments and untracked results
	rm -rf "$(VENV)" .venv-vllm .snakemake results/*/{runs,base,data,logs,benchmarks,report.html,page.html,runs.csv.gz} results/*/public/*/
