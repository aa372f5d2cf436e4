#!/usr/bin/env bash
# Runs in the new environment, in the directory of the workflow. Written by `make docs`.
set -euo pipefail
python -m pip install --no-deps --no-build-isolation --editable .
