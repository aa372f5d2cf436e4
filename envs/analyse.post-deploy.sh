#!/usr/bin/env bash
# Runs in the new environment, in the directory where Snakemake was started: the checkout, if
# TROLL_CHECKOUT names no other. Written by `make docs`.
set -euo pipefail
checkout=${TROLL_CHECKOUT:-.}
if [ ! -d "$checkout/troll" ]; then
    echo "error: $checkout is no checkout of troll; name one by TROLL_CHECKOUT=/path/to/checkout" >&2
    exit 1
fi
python -m pip install --no-deps --no-build-isolation --editable "$checkout"
