#!/usr/bin/env bash
# Creates the environment in a directory: setup.sh DIRECTORY. VLLM=1 creates the one with vLLM. TORCH=cpu and TORCH=cuda choose
# torch's build; by default it is CUDA's if this machine has an NVIDIA GPU, and always with vLLM, which needs it. Safe to
# interrupt and to repeat.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${1:?usage: setup.sh DIRECTORY}
python=${PYTHON:-python3}
constraints=$here/envs/constraints.txt requirements=$here/envs/requirements.txt extras=test
[ -z "${VLLM:-}" ] ||
    { constraints=$here/envs/constraints-vllm.txt requirements=$here/envs/requirements-vllm.txt extras=vllm; }
say() { printf '[env] %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

case $here in *[{}]*) die "$here: setuptools and Snakemake do not support braces in a path; move the checkout to a path without braces" ;; esac
case ${TORCH:-cpu} in cpu | cuda) ;; *) die "TORCH is $TORCH; must be cpu or cuda" ;; esac
command -v "$python" >/dev/null 2>&1 ||
    die "$python: not found; Python 3.11 to 3.13 is needed: make env PYTHON=python3.12"
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null ||
    die "$python is $("$python" --version 2>&1), but Python 3.11 to 3.13 is needed: make env PYTHON=python3.12"
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    die "$python has no venv module; on Debian: sudo apt-get install python3-venv"

if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    [ ! -e "$venv" ] || [ -e "$venv/pyvenv.cfg" ] || [ -d "$venv" -a -z "$(ls -A "$venv" 2>/dev/null)" ] ||
        die "$venv exists and is not a Python environment; choose another path: make env VENV=.venv"
    say "creating $venv"
    rm -rf "$venv"
    "$python" -m venv "$venv"
fi
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }
# Not compiled here: import_all.py compiles the imported part; compiling everything takes a minute.
install() { pip install -qq --no-compile "$@"; }

# torch first: without a GPU, a CPU build saves gigabytes. Three sources are tried in turn: a CPU build in the
# configured indexes, PyTorch's own CPU index, and the plain package (CUDA on Linux).
torch=$(sed -n 's/^torch==\([0-9.]*\).*/\1/p' "$constraints")
build=${TORCH:-${VLLM:+cuda}} why="TORCH=cpu"
if [ -z "$build" ]; then
    if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1; then build=cuda; else build=cpu; fi
    why="no NVIDIA GPU found; for jobs on other machines with GPUs: TORCH=cuda make env"
fi
# A build that was chosen replaces the other one; one that was not stays.
kept="import sys, torch; sys.exit(torch.__version__.split('+')[0] != '$torch'"
[ "${TORCH:-}" != cuda ] || kept="$kept or not torch.version.cuda"
[ "${TORCH:-}" != cpu ] || kept="$kept or bool(torch.version.cuda)"
if ! "$venv/bin/python" -c "$kept)" 2>/dev/null; then
    # To pip, both builds are the same version.
    [ -z "${TORCH:-}" ] || pip uninstall -qq -y torch >/dev/null 2>&1 || true
    if [ "$build" = cuda ]; then
        say "installing torch $torch with CUDA"
        install "torch==$torch"
    else
        say "installing torch $torch for the CPU ($why)"
        install "torch==$torch+cpu" 2>/dev/null ||
            install --retries 1 --index-url https://download.pytorch.org/whl/cpu "torch==$torch" 2>/dev/null ||
            { say "download.pytorch.org cannot be reached; installing torch with CUDA, which needs 4 GB more"
              install "torch==$torch"; }
    fi
fi
say "installing the pinned packages (a few minutes)"
# With hashes, so that pip only accepts the files that were published when the pins were made. setuptools first, because it
# builds source packages. The last line adds the package itself, and what other Python versions need beyond the pins.
held() { install --require-hashes --no-deps --no-build-isolation --requirement "$1"; }
held <(sed -n '/^setuptools==/,/[^\\]$/p' "$requirements")
held "$requirements"
install --no-build-isolation --constraint "$constraints" --editable "$here[$extras]"
"$venv/bin/python" "$here/envs/import_all.py" >/dev/null 2>&1 || true
pip check >/dev/null || say "warning: $(pip check 2>&1 | head -n 1)"

# Model-written code runs under bubblewrap; without it, the code task is skipped, and every table says so.
if ! command -v bwrap >/dev/null 2>&1; then
    if command -v apt-get >/dev/null 2>&1 && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }; then
        say "installing bubblewrap"
        sudo=""; [ "$(id -u)" = 0 ] || sudo="sudo -n"
        { $sudo apt-get update -qq && $sudo apt-get install -y -qq --no-install-recommends bubblewrap; } >/dev/null 2>&1 ||
            say "bubblewrap could not be installed; the code task will be skipped"
    else
        case "$(uname -s)" in
            Linux) say "bubblewrap is missing and the code task will be skipped; run: sudo apt-get install bubblewrap (or dnf, pacman)" ;;
            *) say "bubblewrap needs Linux; the code task will be skipped" ;;
        esac
    fi
fi
say "ready: $venv"
