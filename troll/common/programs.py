"""What other programs print: git, nvidia-smi and those of SLURM."""

import subprocess

_TIMEOUT_S = 30.0


def output_of(*command: str) -> str | None:
    """Returns the stripped output of a program; None if it is missing, fails or takes too long."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout.strip()
