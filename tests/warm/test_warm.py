"""Commands forked from a warm server do what ordinary processes do, and so do kills and signals."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from shlex import quote

import pytest

from troll import warm
from troll.warm.client import SWITCH, VARIABLE
from troll.warm.server import MODULES

pytestmark = pytest.mark.skipif(not warm.usable(), reason="no warm server is started on this machine")
OWNER = (
    "import json, sys; from troll import warm; print(json.dumps(warm.start()), flush=True); sys.stdin.read()"
)


def problems(directory, train):
    """A command that writes this many problems, and the file of its settings."""
    path = directory / f"{train}.yaml"
    path.write_text(f"{{name: chains, train: {train}, validation: 4, test: 4}}")
    return ("job", "problems", "--config", str(path))


LONG = 2_000_000  # problems: a command that runs until it is stopped


class Owner:
    """A process that has started a server, as a workflow does, and the environment of its commands."""

    def __init__(self):
        # A server that other tests of this process share would take the place of its own.
        outside = {name: value for name, value in os.environ.items() if name != VARIABLE}
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=outside,
        )
        started = json.loads(self.process.stdout.readline())
        one_thread = {name: "1" for name in outside if name.endswith("_NUM_THREADS")}
        self.environment = outside | warm.ONE_THREAD | one_thread | started | {SWITCH: "debug"}

    def server(self):
        (found,) = children(self.process.pid)
        return found

    def run(self, *arguments, prefix=(), **settings):
        settings = {"env": self.environment, "capture_output": True, "text": True, "timeout": 120} | settings
        return subprocess.run([*prefix, "troll", *arguments], **settings)

    def start(self, *arguments, **settings):
        return subprocess.Popen(["troll", *arguments], **{"env": self.environment} | settings)

    def end(self):
        self.process.stdin.close()
        self.process.wait(30)


def children(process):
    """Processes that a process has started, by their own word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, parent = path.parent.name, int(path.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if parent == process:
            found.append(int(name))
    return found


def until(condition, what):
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
    return found


def gone(process):
    """Whether a process has ended, its parent's word aside."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


@pytest.fixture(scope="module")
def shared():
    owner = Owner()
    yield owner
    owner.end()


@pytest.fixture
def owner():
    owner = Owner()
    yield owner
    owner.end()


@pytest.fixture
def running(owner, tmp_path):
    """A long command that its server has forked: client and forked process."""
    log, long = tmp_path / "log", problems(tmp_path, LONG)
    client = owner.start(
        "--log", str(log), *long, "--out", str(tmp_path / "out"), stderr=subprocess.PIPE, text=True
    )
    (worker,) = until(lambda: children(owner.server()), "nothing was forked")
    until(lambda: os.getpgid(client.pid) != os.getpgid(0), "the client has not handed over")
    until(log.exists, "it does not start")
    yield client, worker
    client.kill()
    client.communicate()


LOOK = """import json, os, resource, signal, sys
own = [os.getcwd(), dict(os.environ), os.getpgid(0), os.getsid(0), sys.stdin.read(), os.umask(0), os.nice(0)]
own += [[int(number) for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN]]
own += [[int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())]]
own += [resource.getrlimit(resource.RLIMIT_NOFILE), sorted(os.listdir("/proc/self/fd"))]
own += [open(f"/proc/{os.getppid()}/comm").read()]
print(json.dumps(own), file=open(os.environ["TROLL_LOOK"], "w"))
"""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["nonsense"],
        ["job", "configure", "--config", "none.json", "--out", "run.yaml"],
        ["--log", "log/of it", "job", "problems", "--config", "20.yaml", "--out", "out"],
        ["--log", "log", "job", "problems", "--config", "nothing.json", "--out", "out"],
    ],
)
def test_a_forked_command_does_what_an_ordinary_process_does(shared, tmp_path, arguments):
    def everything(name, **environment):
        directory = tmp_path / name
        directory.mkdir()
        problems(directory, 20)
        (directory / "nothing.json").write_text('{"name": "nothing"}')
        result = shared.run(*arguments, cwd=directory, env=shared.environment | environment)
        files = {path.relative_to(directory): path for path in directory.rglob("*") if path.is_file()}
        contents = {str(name): path.read_bytes() for name, path in files.items()}
        return result.returncode, result.stdout, result.stderr, contents

    assert everything("warm") == everything("cold", **{SWITCH: "0"})


def test_a_forked_process_has_what_is_the_callers_own(shared, tmp_path):
    # A program that the command calls says what it has inherited.
    git = tmp_path / "bin/git"
    git.parent.mkdir()
    look = tmp_path / "look.py"
    look.write_text(LOOK)
    # Not in the first line itself: the place of the environment may have a space.
    git.write_text(f"#!/bin/sh\nexec {quote(sys.executable)} {quote(str(look))}\n")
    git.chmod(0o755)

    def hold():
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})

    def looked(name, **environment):
        client, *rest = shared.environment["PATH"].split(":")
        environment |= {
            "PATH": ":".join([client, str(git.parent), *rest]),
            "TROLL_LOOK": str(tmp_path / name),
        }
        settings = {"cwd": tmp_path, "input": "typed", "preexec_fn": hold}
        result = shared.run("--version", "--verbose", env=shared.environment | environment, **settings)
        assert result.returncode == 0 and result.stderr == ""
        found = json.loads((tmp_path / name).read_text())
        for variable in (SWITCH, "TROLL_LOOK", "_", VARIABLE):
            found[1].pop(variable, None)
        found[1]["PATH"] = found[1]["PATH"].removeprefix(f"{client}:")
        return found

    (*forked, name), (*cold, started) = looked("warm"), looked("cold", **{SWITCH: "0"})
    assert forked == cold
    # Where the path has a space, pip's script is one of the shell, which starts Python.
    assert name == "troll\n" and started in ("troll\n", "python\n")


@pytest.mark.parametrize(
    ("reason", "settings"),
    [
        ("session differs", {"prefix": ["setsid", "-w", "sh", "-c", '"$0" "$@"; exit $?']}),
        ("leads a process group", {"start_new_session": True}),
        ("status differs", {"umask": 0o077}),
        ("priority differs", {"preexec_fn": lambda: os.nice(1)}),
        ("OMP_NUM_THREADS", {"env": {"OMP_NUM_THREADS": "2"}}),
        ("HF_HUB_OFFLINE", {"env": {"HF_HUB_OFFLINE": "0"}}),
        ("Connection refused", {"env": {VARIABLE: "troll-of-yesterday"}}),
    ],
)
def test_what_does_not_fit_runs_as_an_ordinary_process(shared, tmp_path, reason, settings):
    settings = settings | {"env": shared.environment | settings.get("env", {})}
    result = shared.run(*problems(tmp_path, 10), "--out", str(tmp_path / "out"), **settings)
    assert result.returncode == 0, result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("debug: runs as an ordinary process: ") and reason in line
    assert (tmp_path / "out/train.jsonl").exists()


def test_a_workflow_inside_of_another_takes_its_server(shared, tmp_path):
    command = [sys.executable, "-c", OWNER]
    inner = subprocess.run(command, env=shared.environment, stdin=subprocess.DEVNULL, capture_output=True)
    started = json.loads(inner.stdout)
    assert started[VARIABLE] == shared.environment[VARIABLE]
    served = shared.run(
        *problems(tmp_path, 20), "--out", "out", cwd=tmp_path, env=shared.environment | started
    )
    assert served.returncode == 0 and "ordinary process" not in served.stderr


def test_changed_source_is_not_served(shared, repository):
    """The last test of this server."""
    path = repository / "troll/warm/__init__.py"
    before = path.stat()
    assert shared.run("--version").stderr == ""
    os.utime(path)
    try:
        result = shared.run("--version")
    finally:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert result.returncode == 0 and "the source or the installed packages have changed" in result.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_user_is_refused(owner):
    script = (
        "import os, socket, sys; os.setuid(65534); c = socket.socket(socket.AF_UNIX);"
        "c.connect('\\0' + sys.argv[1]); print(c.recv(100).decode())"
    )
    command = [sys.executable, "-c", script, owner.environment[VARIABLE]]
    assert "another user" in subprocess.run(command, capture_output=True, text=True).stdout


def test_half_a_request_does_no_harm(owner):
    for data in (b"", b"x", (1000).to_bytes(8, "little") + b"x" * 10):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect("\0" + owner.environment[VARIABLE])
            connection.sendall(data)
    assert owner.run("--version").stderr == ""


def ended_by(number, process):
    """What a process said that a signal ended; only interrupts are lost, while Python cannot raise."""
    for _ in range(12 if number == signal.SIGINT else 1):
        process.send_signal(number)
        try:
            return process.communicate(timeout=15 if number == signal.SIGINT else 180)[1]
        except subprocess.TimeoutExpired:
            continue
    pytest.fail("it lives on")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGKILL])
def test_a_signal_ends_client_and_command_as_it_does_an_ordinary_process(running, owner, tmp_path, number):
    client, worker = running
    time.sleep(0.3)
    said = ended_by(number, client)
    until(lambda: gone(worker), "the forked process lives on")

    settings = {"env": owner.environment | {SWITCH: "0"}, "stderr": subprocess.PIPE, "text": True}
    log, long = tmp_path / "cold log", problems(tmp_path, LONG)
    cold = owner.start("--log", str(log), *long, "--out", str(tmp_path / "cold"), **settings)
    until(log.exists, "it does not start")
    time.sleep(0.3)
    assert ended_by(number, cold) == said
    assert cold.returncode == client.returncode


def test_a_killed_forked_process_ends_its_client_likewise(running):
    client, worker = running
    os.kill(worker, signal.SIGKILL)
    client.communicate(timeout=30)
    assert client.returncode == -signal.SIGKILL


def test_when_the_server_is_killed_a_command_begins_again_without_it(owner, tmp_path):
    arguments = problems(tmp_path, 30_000)
    client = owner.start(*arguments, "--out", str(tmp_path / "out"), stderr=subprocess.PIPE, text=True)
    (worker,) = until(lambda: children(owner.server()), "nothing was forked")
    os.kill(owner.server(), signal.SIGKILL)
    said = client.communicate(timeout=120)[1]
    until(lambda: gone(worker), "the forked process lives on")
    assert client.returncode == 0 and said.startswith("debug: runs as an ordinary process: ")
    owner.run(*arguments, "--out", str(tmp_path / "whole"), check=True)
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()


def test_a_server_outlives_a_killed_owner_only_by_the_command_that_runs(running, owner):
    client, worker = running
    server = owner.server()
    owner.process.kill()
    time.sleep(0.2)
    assert client.poll() is None and not gone(worker)
    assert "Connection refused" in owner.run("--version").stderr
    client.kill()
    until(lambda: gone(worker) and gone(server), "a process is left behind")


def test_an_idle_server_ends_with_its_owner(owner):
    server = owner.server()
    owner.process.kill()
    until(lambda: gone(server), "the server is left behind")


def test_every_command_of_the_workflow_has_its_modules(repository):
    rules = " ".join(path.read_text() for path in (repository / "workflow/rules").glob("*.smk"))
    used = set(re.findall(r"troll --log \{log:q\} (?:job )?([a-z-]+)", rules))
    # It runs once, or asks the network.
    assert used - MODULES.keys() == {"oracle", "benchmark-table"}


LOAD = """
import importlib, os
from troll.common.processor import quiet_libraries
from troll.warm.server import MODULES
quiet_libraries()
for names in MODULES.values():
    for name in names:
        importlib.import_module(name)
        assert len(os.listdir("/proc/self/task")) == 1, name
import torch
assert not torch.cuda.is_initialized()
"""


@pytest.mark.slow
def test_what_the_server_loads_starts_no_thread(shared):
    environment = shared.environment | {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
    result = subprocess.run([sys.executable, "-c", LOAD], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_where_processes_cannot_be_held_nothing_is_forked(monkeypatch):
    def refused(_):
        raise OSError("no such system call")

    monkeypatch.setattr(os, "pidfd_open", refused, raising=False)
    assert not warm.usable() and warm.start() == {}
