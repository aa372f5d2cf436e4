#!/usr/bin/env bash
# Runs tests: `run.sh` all but the nightly ones (`make test`), `run.sh fast` and `run.sh slow` a part of them, `run.sh nightly`
# the others; `run.sh lint` runs linters, type checker and workflow checks. TROLL_TEST_MINUTES, where it is set, is when the
# last slow test begins; those that are left are skipped, and reported. How long each test took is in .tests/NAME.xml.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export OMP_NUM_THREADS=1
export PYTHONDONTWRITEBYTECODE= # hundreds of processes import the same modules, which are compiled once
[ -z "${TROLL_TEST_MINUTES:-}" ] || export TROLL_TEST_UNTIL=$(($(date +%s) + 60 * TROLL_TEST_MINUTES))
step() { printf '\n== %s\n' "$*"; }

lint() {
    step "ruff"; ruff check .; ruff format --check .
    step "mypy"; mypy
    step "snakefmt"; snakefmt --check Snakefile workflow
    step "snakemake --lint"; snakemake --lint
    if command -v actionlint >/dev/null; then step "actionlint"; actionlint; fi # `make actionlint` installs it
}

case ${1:-test} in
    lint) lint; exit ;;
    fast) chosen="not slow and not nightly" ;;
    slow) chosen="slow and not nightly" ;;
    nightly) chosen=nightly ;;
    test) chosen="not nightly" ;;
    *) echo "error: $0 $1: must be fast, slow, nightly or lint, or nothing" >&2; exit 2 ;;
esac
# A worker per core. The tests of one file run one after another, because they share what is costly to make, and in the order
# of tests/conftest.py, so that none of the longest is left for the end, when it would run alone.
step "tests (${1:-test})"
pytest -q -n logical --dist loadfile --no-loadscope-reorder --maxprocesses 4 --durations=40 \
    --junitxml=".tests/${1:-test}.xml" -m "$chosen"
