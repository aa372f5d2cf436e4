#!/usr/bin/env bash
# What `make test` runs: linters, type checker, workflow checks and all tests. `run.sh lint`, `run.sh fast` and
# `run.sh slow` run a part of it. TROLL_TEST_MINUTES, where it is set, is when the last slow test begins; those that are
# left are skipped, and said to be.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export OMP_NUM_THREADS=1
export PYTHONDONTWRITEBYTECODE= # hundreds of processes import the same: what is not compiled yet is compiled once
[ -z "${TROLL_TEST_MINUTES:-}" ] || export TROLL_TEST_UNTIL=$(($(date +%s) + 60 * TROLL_TEST_MINUTES))
step() { printf '\n== %s\n' "$*"; }

lint() {
    step "ruff"; ruff check .; ruff format --check .
    step "mypy"; mypy
    step "snakefmt"; snakefmt --check Snakefile workflow
    step "snakemake --lint"; snakemake --lint
    if command -v actionlint >/dev/null; then step "actionlint"; actionlint; fi # `make actionlint` installs it
}
# As many at a time as there are cores; those of one file one after another, because they share what is costly to make;
# in the order of tests/conftest.py, so that none of the longest is left for the end, when it would run alone.
tests() { pytest -q -n logical --dist loadfile --no-loadscope-reorder --maxprocesses 4 --durations=40 "$@"; }

case ${1:-all} in
    lint) lint; exit ;;
    fast) step "fast tests"; tests -m "not slow"; exit ;;
    slow) chosen=(tests -m slow) ;;
    all) chosen=(tests) ;;
esac

# Beside the tests: the linters, of which one takes a minute of one core, and the tests on SLURM, where they are asked for
# (TROLL_TEST_SLURM=1, or all), which mostly wait. What they say is shown at the end.
slurm=(tests/workflow/test_slurm.py tests/workflow/test_slurm_outage.py)
said=$(mktemp -d) linting="" waiting="" status=0
end() { [ -z "$2" ] || kill -INT -- "$1$2" 2>/dev/null || true; }
trap 'end - "$linting"; end "" "$waiting"; rm -rf "$said"' EXIT # of the linters the whole group
set -m # or else they would not hear of an interrupt, and the test leave its SLURM behind
if [ "${1:-all}" = all ]; then
    (lint) >"$said/lint" 2>&1 &
    linting=$!
fi
if [ -n "${TROLL_TEST_SLURM:-}" ]; then
    pytest -q "${slurm[@]}" >"$said/slurm" 2>&1 &
    waiting=$!
    chosen+=("${slurm[@]/#/--ignore=}")
fi
set +m
step "tests"; tests "${chosen[@]}" || status=$?
if [ -n "$waiting" ]; then
    step "${slurm[*]}, beside the others"
    wait "$waiting" || status=$?
    cat "$said/slurm"
    waiting=""
fi
if [ -n "$linting" ]; then
    wait "$linting" || status=$?
    cat "$said/lint"
    linting=""
fi
exit "$status"
