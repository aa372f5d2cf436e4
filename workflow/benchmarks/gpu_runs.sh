#!/usr/bin/env bash
# Runs an experiment within a time limit on a machine without a network, with many runs sharing one GPU.
#
#   bash workflow/benchmarks/gpu_runs.sh EXPERIMENT.yaml FILES OUT [TARGET...]
#
# EXPERIMENT.yaml  such as workflow/config/smollm2-gpu.yaml
# FILES            a directory with files that the machine lacks:
#                    wheels/*.whl     packages that its Python lacks (see below); optional
#                    model/NAME.whl   the package with the model, complete or in parts NAME.whl.part*, which are joined in
#                                     the order of their names
#                    data/            public data sets in the layout of TROLL_DATA_MIRROR, for tasks such as gsm8k; optional
#                    bin/, lib/       programs such as bwrap with their libraries; optional
# OUT              a directory for EXPERIMENT.tar.gz (in parts of 15 MB if it is larger), with the run.yaml, manifest.json,
#                  metrics.jsonl, samples.jsonl and grades.json of all finished runs, and the log of the workflow
# TARGET           Snakemake targets, run one after another: groups of the experiment's matrix, or files; default `all`
#
# MINUTES=9        time limit; unfinished runs are lost unless they wrote a checkpoint in this checkout
# JOBS=12          concurrent processes on the GPU, which barely slow each other, because sampling a small model waits for the CPU
# PYTHON=python3   a Python with CUDA-enabled torch and transformers
# MPS=1            0 disables NVIDIA's Multi-Process Service, without which processes use the GPU in turn
#
# The machine needs a checkout, which is 4 MB without results/:
#   git clone --depth 1 --filter=blob:none --sparse URL troll && git -C troll sparse-checkout set --no-cone '/*' '!/results/'
# On a machine with a network, collect the wheels that Python VERSION lacks by
#   pip download --only-binary=:all: --python-version VERSION -d FILES/wheels 'troll[workflow] @ file://CHECKOUT'
# except for torch, nvidia-*, triton and others that it has.
# To resume later, put results/NAME/tidy of EXPERIMENT.tar.gz into the checkout: with `archive: true` in the experiment, graded
# runs are in these tables and are not repeated. Runs that were only sampled (with files as targets, if the machine lacks
# lm-eval or evalplus) are graded elsewhere by `troll grade` and added by `troll job append`; if only unpacked, they are repeated.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '4,6p' "$0" | cut -c3- >&2; exit 2; }
experiment=$1 files=$(cd "$2" && pwd) out=$3
shift 3
python=${PYTHON:-python3} minutes=${MINUTES:-9} jobs=${JOBS:-12}
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[ -f "$experiment" ] || { echo "error: $experiment: no such experiment file" >&2; exit 2; }
mkdir -p "$out" "$files/model"
out=$(cd "$out" && pwd)
end=$(($(date +%s) + $(awk "BEGIN {printf \"%d\", 60 * $minutes}")))

for first in "$files"/model/*.part*; do
    [ -e "$first" ] || continue
    whole=${first%.part*}
    [ -e "$whole" ] || { cat "$whole".part* >"$whole.tmp" && mv "$whole.tmp" "$whole"; } # the hash is checked when it is read
done

site=$files/site
if [ ! -e "$site/.ready" ] && ls "$files"/wheels/*.whl >/dev/null 2>&1; then
    "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$site" "$files"/wheels/*.whl
    touch "$site/.ready"
fi
# The package's metadata, whose version is recorded in manifests and grades.
[ -e "$site/bin/troll" ] || "$python" -m pip install -q --no-index --no-deps --no-build-isolation --no-compile --upgrade \
    --target "$site" . 2>/dev/null || echo "note: troll's own metadata is not installed (setuptools is missing?)"
mkdir -p "$site/bin"
printf '#!/bin/sh\nexec "%s" -m troll.cli.app "$@"\n' "$(command -v "$python")" >"$site/bin/troll"
chmod +x "$site/bin/troll"
export PYTHONPATH="$PWD:$site${PYTHONPATH:+:$PYTHONPATH}" PATH="$site/bin:$files/bin:$PATH"
export LD_LIBRARY_PATH="$files/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
# Processes forked from one that has loaded CUDA libraries cannot use the GPU.
export TROLL_WARM=0
export TROLL_MODEL_MIRROR="$files/model" HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True # many processes on one GPU leave no memory for fragments
[ ! -d "$files/data" ] || export TROLL_DATA_MIRROR="$files/data"

mps=
if [ "${MPS:-1}" = 1 ] && command -v nvidia-cuda-mps-control >/dev/null && [ -z "${CUDA_MPS_PIPE_DIRECTORY:-}" ]; then
    mps=$(mktemp -d)
    export CUDA_MPS_PIPE_DIRECTORY="$mps" CUDA_MPS_LOG_DIRECTORY="$mps/log"
    mkdir "$mps/log"
    nvidia-cuda-mps-control -d || { echo "note: no Multi-Process Service; processes take turns on the GPU"; mps=; unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY; }
fi

name=$(sed -n 's/^experiment: *//p' "$experiment")
collect() {
    [ -d "results/$name" ] || return 0
    find "results/$name" -type f \( -name run.yaml -o -name manifest.json -o -name metrics.jsonl -o -name samples.jsonl \
        -o -name grades.json -o -path '*/logs/*' -o -path '*/benchmarks/*' -o -path '*/tidy/*' \) -size -20M -print0 2>/dev/null |
        tar --null -czf "$out/$name.tar.gz.tmp" -T - && mv "$out/$name.tar.gz.tmp" "$out/$name.tar.gz"
    if [ "$(stat -c %s "$out/$name.tar.gz")" -gt 15000000 ]; then
        split -b 15000000 -d "$out/$name.tar.gz" "$out/$name.tar.gz.part" && rm "$out/$name.tar.gz"
    fi
}
finish() {
    collect
    [ -z "$mps" ] || echo quit | nvidia-cuda-mps-control >/dev/null
}
trap finish EXIT

for target in "${@:-all}"; do
    left=$((end - $(date +%s)))
    [ "$left" -gt 5 ] || { echo "no time left for $target"; break; }
    echo "== $target, $left s left"
    # Each run requests one GPU, but JOBS runs share it. The default of four threads per run would limit their number.
    timeout --signal=INT --kill-after=30 "$left" "$python" -m snakemake --configfile "$experiment" --cores "$jobs" \
        --resources "gpu=$jobs" "mem_mb=1000000" --set-threads train=1 hub_model=1 sample=1 grade=1 --scheduler greedy \
        --max-jobs-per-timespan 1000/3s --rerun-incomplete --rerun-triggers mtime --keep-going --quiet rules \
        -- $target 2>&1 | tee -a "$out/$name.log" || echo "$target: not all jobs have finished"
done
