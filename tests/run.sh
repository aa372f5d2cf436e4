#!/usr/bin/env bash
# What `make test` runs: linters, type checker, workflow checks, then all tests, fast ones first. `run.sh lint`,
# `run.sh fast` and `run.sh slow` run a part of it. TROLL_TEST_MINUTES, where it is set, is when the last slow test
# begins; those that are left are skipped, and said to be.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export OMP_NUM_THREADS=1
[ -z "${TROLL_TEST_MINUTES:-}" ] || export TROLL_TEST_UNTIL=$(($(date +%s) + 60 * TROLL_TEST_MINUTES))
step() { printf '\n== %s\n' "$*"; }

part=${1:-all}
wanted() { [ "$part" = all ] || [ "$part" = "$1" ]; }

if wanted lint; then
    step "ruff"; ruff check .; ruff format --check .
    step "mypy"; mypy
    step "snakefmt"; snakefmt --check Snakefile workflow
    step "snakemake --lint"; snakemake --lint
    if command -v actionlint >/dev/null; then step "actionlint"; actionlint; fi # `make actionlint` installs it
fi
# As many at a time as there are cores; those of one file one after another, because they share what is costly to make;
# in the order of tests/conftest.py, so that none of the longest is left for the end, when it would run alone.
several=(-q -n logical --dist loadfile --no-loadscope-reorder --maxprocesses 4)
status=0
if wanted fast; then step "fast tests"; pytest -m "not slow" "${several[@]}" --durations=25 || status=$?; fi
wanted slow || exit "$status"

# The test on SLURM, where it is asked for, mostly waits: it runs beside the others.
slurm=tests/workflow/test_slurm.py said=$(mktemp) beside=""
if [ -n "${TROLL_TEST_SLURM:-}" ]; then
    set -m # or else it would not hear of an interrupt, and leave its SLURM behind
    pytest -q "$slurm" >"$said" 2>&1 &
    beside=$!
    set +m
fi
trap '[ -z "$beside" ] || kill -INT "$beside" 2>/dev/null || true; rm -f "$said"' EXIT
step "slow tests"; pytest -m slow "${several[@]}" --durations=25 ${beside:+--ignore "$slurm"} || status=$?
if [ -n "$beside" ]; then
    step "$slurm, beside the others"
    wait "$beside" || status=$?
    cat "$said"
    beside=""
fi
exit "$status"
