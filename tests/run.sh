#!/usr/bin/env bash
# What `make test` runs: linters, type checker, workflow checks, then all tests, fast ones first. `run.sh lint` stops
# before the tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export OMP_NUM_THREADS=1
step() { printf '\n== %s\n' "$*"; }

step "ruff"; ruff check .; ruff format --check .
step "mypy"; mypy
step "snakefmt"; snakefmt --check Snakefile workflow
step "snakemake --lint"; snakemake --lint
[ "${1:-}" != lint ] || exit 0
step "fast tests"; pytest -m "not slow" -q

# The test on SLURM, where it is asked for, mostly waits: it runs beside the others.
slurm=tests/workflow/test_slurm.py said=$(mktemp) status=0 beside=""
if [ -n "${TROLL_TEST_SLURM:-}" ]; then
    set -m # or else it would not hear of an interrupt, and leave its SLURM behind
    pytest -q "$slurm" >"$said" 2>&1 &
    beside=$!
    set +m
fi
trap '[ -z "$beside" ] || kill -INT "$beside" 2>/dev/null || true; rm -f "$said"' EXIT
step "slow tests"; pytest -m slow -q --durations=10 ${beside:+--ignore "$slurm"} || status=$?
if [ -n "$beside" ]; then
    step "$slurm, beside the others"
    wait "$beside" || status=$?
    cat "$said"
    beside=""
fi
exit "$status"
