"""What `make results` runs: Snakemake, alone in this directory, whatever happened to the last attempt.

A Snakemake that was killed leaves its lock behind. The lock here is the operating system's and dies with its
process, so that a leftover can be told from a second run that is alive.
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path


def main(arguments: list[str]) -> None:
    """Takes the lock, removes Snakemake's leftover, and becomes Snakemake."""
    directory = Path(".snakemake")
    directory.mkdir(exist_ok=True)
    handle = os.open(directory / "results.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit("error: another `make results` is running in this directory; wait for it, or stop it")
    os.set_inheritable(handle, True)  # the lock lives as long as Snakemake does
    snakemake = [sys.executable, "-m", "snakemake"]
    if any((directory / "locks").glob("*")):
        subprocess.run([*snakemake, "--unlock", *arguments], check=True, capture_output=True)
    os.execv(sys.executable, [*snakemake, *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
