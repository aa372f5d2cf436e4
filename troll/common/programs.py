"""What other programs print: git, nvidia-smi and those of SLURM."""

import subprocess


def output_of(*command: str, timeout_s: float = 30.0) -> str | None:
    """Returns the stripped output of a program; None if it is missing, fails or takes too long."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return ended.stdout.strip()
