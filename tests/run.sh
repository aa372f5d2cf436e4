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
step "slow tests"; pytest -m slow -q --durations=10
