"""Processor seconds of each kind of job, as an ordinary process and forked from a warm server, side by side.

``python tests/warm/processor_seconds.py DIRECTORY EXPERIMENT``: one job of each command of an experiment that
has been run in DIRECTORY is run again there, first to load what it needs, then both ways. Nothing else should
run beside it.
"""

import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path

from troll import warm


def jobs(directory, experiment):
    """The first shell line of every command, by its name."""
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "-n", "-p", "--forceall"]
    command += ["--configfile", experiment]
    plan = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    found = {}
    for line in re.findall(r"(?:exec )?troll --log .*", plan.stdout + plan.stderr):
        name = re.match(r"(?:exec )?troll --log (?:'[^']*'|\S+) (\S+)", line)[1]
        found.setdefault(name, line)
    return found


def seconds(process):
    """Processor seconds of the ended children of a process, and of theirs."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def measured(command, directory, environment, server):
    """Processor and wall seconds of a command, with what the server's children take."""

    def used():
        own = resource.getrusage(resource.RUSAGE_CHILDREN)
        return own.ru_utime + own.ru_stime + (seconds(server) if server else 0)

    before, begun = used(), time.monotonic()
    subprocess.run(["bash", "-c", command], cwd=directory, env=environment, check=True, capture_output=True)
    wall = time.monotonic() - begun
    time.sleep(0.1)  # until the server has reaped its child
    return used() - before, wall


def main(directory, experiment):
    cold = os.environ | warm.ONE_THREAD
    cold["PATH"] = f"{Path(sys.executable).parent}:{cold['PATH']}"
    started = cold | warm.start()
    (server,) = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    rows = {}
    for name, command in jobs(directory, experiment).items():
        first = measured(command, directory, started, int(server))
        again = measured(command, directory, started, int(server))
        rows[name] = [measured(command, directory, cold, 0), first, again]
        (cold_s, cold_wall), (_, _), (warm_s, warm_wall) = rows[name]
        print(
            f"{name:16} cold {cold_s:6.2f} s ({cold_wall:6.2f} s)"
            f"  forked {warm_s:6.2f} s ({warm_wall:6.2f} s)  ratio {warm_s / cold_s:.2f}",
            flush=True,
        )
    print("RESULT " + json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2])
