"""What tests of GPU kernels share: where they can run, and that nothing waits for the device."""

import importlib.util
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or INTERPRETED,
    reason="triton is not installed (pip install triton), or this runs in its interpreter",
)


def on_gpu(test):
    """Marks a test that needs a GPU."""
    absent = not torch.cuda.is_available() or INTERPRETED
    return pytest.mark.gpu(pytest.mark.skipif(absent, reason="no CUDA device")(test))


@contextmanager
def no_waits():
    """Any wait of the host for the device is an error inside."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def run_in_interpreter(cases, timeout):
    """Runs a file of tests with Triton's interpreter, which Triton must know of as it is imported."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(Path(__file__).with_name(cases))],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout + done.stderr
