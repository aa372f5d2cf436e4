"""A process that has loaded the libraries, and forks for each `troll` command of a local workflow.

The workflow starts it (`start`), and it ends with the workflow. A job calls the light `bin/troll` (`client`),
which hands its command to the server (`server`), or runs it as an ordinary process where anything is not as
it should be.

Looked at first: `multiprocessing.forkserver` forks for its own parent only, which calls Python functions, and
passes neither standard streams, environment, process group nor signals; `socketserver.ForkingMixIn` does not
tell when a client is killed, nor how a child ended. What is left is a loop around `selectors`,
`socket.send_fds` and `os.pidfd_open`.
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
# What Snakemake sets for the jobs of one thread.
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "GOTO", "OPENBLAS", "MKL", "NUMEXPR")} | {
    "VECLIB_MAXIMUM_THREADS": "1"
}


def _has_pidfd() -> bool:
    """Whether the kernel, and what may confine this process, let it hold other processes by descriptors."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return hasattr(signal, "pidfd_send_signal")


def usable() -> bool:
    """Whether commands may be forked: on Linux, without a GPU or a batch system, not switched off."""
    return (
        sys.platform == "linux"
        and _has_pidfd()
        and os.environ.get(SWITCH) != "0"
        and not any(Path(device).exists() for device in _GPUS)
        and not any(name in os.environ for name in _BATCH_SYSTEMS)
    )


def start() -> dict[str, str]:
    """Starts a server that ends with this process, however that ends; inside of a workflow its server serves.

    Returns:
        The variables of the environment in which `troll` is the light client, for commands of one thread;
        none where commands are better run as ordinary processes.
    """
    if not usable():
        return {}
    if outer := os.environ.get(VARIABLE):
        return {"PATH": f"{_HERE / 'bin'}:{_path()}", VARIABLE: outer}
    name = f"troll-{secrets.token_hex(16)}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(f"\0{name}")  # no file: nothing can be left behind
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
                process_group=0,  # an interrupt at the keyboard, or a kill of the workflow, is for its jobs
            )
            os.close(alive)
    except OSError:
        return {}
    atexit.register(_end, server, lifeline, os.getpid())
    return {"PATH": f"{_HERE / 'bin'}:{_path()}", VARIABLE: name}


def shell_prefix() -> str:
    """Starts a server; the shell commands after which `troll` is its client."""
    return "".join(f"export {name}={quote(value)}; " for name, value in start().items())


def _path() -> str:
    """The search path on which `troll` is the one beside this Python."""
    return f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"


def _end(server: subprocess.Popen[bytes], lifeline: int, owner: int) -> None:
    if os.getpid() == owner:  # and not a process forked from it
        os.close(lifeline)
        with suppress(subprocess.TimeoutExpired):  # a command that outlives the workflow, as it would without
            server.wait(1)
