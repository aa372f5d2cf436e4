#!/usr/bin/env bash
# Runs in the new environment, in the directory where Snakemake was started, which must be the checkout
# unless TROLL_CHECKOUT names one. Written by `make docs`.
set -euo pipefail
checkout=${TROLL_CHECKOUT:-.}
if [ ! -d "$checkout/troll" ]; then
    echo "error: $checkout is not a checkout of troll; set TROLL_CHECKOUT=/path/to/checkout" >&2
    exit 1
fi
python -m pip install --no-deps --no-build-isolation --editable "$checkout"
