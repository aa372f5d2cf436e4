"""The warm server: a process with the libraries loaded, which forks for the `troll` commands of a workflow.

A local workflow starts it (`start`), and it ends with the workflow. A job calls the light `bin/troll`
(`troll.warm.client`), which passes its command to the server (`troll.warm.server`), or runs it as an ordinary
process if the server is missing or refuses.

Why not the standard library's servers: `multiprocessing.forkserver` only calls Python functions for its own
parent, and passes on neither standard streams, environment, process group nor signals;
`socketserver.ForkingMixIn` reports neither a killed client nor how a child ended. So this is a loop around
`selectors`, `socket.send_fds` and `os.pidfd_open`.
"""

import atexit
import os
import secrets
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from shlex import quote

from troll.warm.client import SWITCH, VARIABLE

_HERE = Path(__file__).parent
_GPUS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg")
_BATCH_SYSTEMS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
# Snakemake sets these for jobs with one thread.
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "GOTO", "OPENBLAS", "MKL", "NUMEXPR")} | {
    "VECLIB_MAXIMUM_THREADS": "1"
}


def _has_pidfd() -> bool:
    """Tells whether the kernel and any sandbox around this process allow file descriptors of processes."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return hasattr(signal, "pidfd_send_signal")


def usable() -> bool:
    """Tells whether commands may be forked: on Linux, without GPU or batch system, and not switched off."""
    return (
        sys.platform == "linux"
        and _has_pidfd()
        and os.environ.get(SWITCH) != "0"
        and not any(Path(device).exists() for device in _GPUS)
        and not any(name in os.environ for name in _BATCH_SYSTEMS)
    )


def start() -> dict[str, str]:
    """Starts a server that ends when this process ends for any reason, or uses that of an outer workflow.

    Returns:
        Environment variables that make `troll` the light client, for commands with one thread. Empty if
        commands should run as ordinary processes.
    """
    if not usable():
        return {}
    if outer := os.environ.get(VARIABLE):
        return {"PATH": f"{_HERE / 'bin'}:{_path()}", VARIABLE: outer}
    name = f"troll-{secrets.token_hex(16)}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(f"\0{name}")  # an abstract socket, which leaves no file behind
            listener.listen(256)
            alive, lifeline = os.pipe()
            descriptors = (listener.fileno(), alive)
            server = subprocess.Popen(
                [sys.executable, str(_HERE / "server.py"), *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | ONE_THREAD | {"PATH": _path()},
                pass_fds=descriptors,
                process_group=0,  # a Ctrl-C, or a signal to the workflow's group, must not reach the server
            )
            os.close(alive)
    except OSError:
        return {}
    atexit.register(_end, server, lifeline, os.getpid())
    return {"PATH": f"{_HERE / 'bin'}:{_path()}", VARIABLE: name}


def shell_prefix() -> str:
    """Starts a server, and returns shell commands that make `troll` its client."""
    return "".join(f"export {name}={quote(value)}; " for name, value in start().items())


def _path() -> str:
    """Returns a PATH that starts with the directory of this Python, and so finds the `troll` beside it."""
    return f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"


def _end(server: subprocess.Popen[bytes], lifeline: int, owner: int) -> None:
    if os.getpid() == owner:  # not in a process forked from it
        os.close(lifeline)
        with suppress(
            subprocess.TimeoutExpired
        ):  # a command may outlive the workflow, as it could without us
            server.wait(1)
