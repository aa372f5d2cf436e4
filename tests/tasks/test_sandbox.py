import os
import signal
import socket
import stat
import threading
import time
from pathlib import Path

import pytest
from refusals import refused

from troll.tasks.sandbox import bubblewrap, plain_data
from troll.tasks.sandbox import pool as sandbox
from troll.tasks.sandbox.pool import Limits, Program, run_batch, sandbox_available

pytestmark = pytest.mark.skipif(not sandbox_available()[0], reason=f"no sandbox: {sandbox_available()[1]}")

SHORT = Limits(cpu_s=0.3, wall_s=20)  # for programs that compute, however loaded the machine is
IMPATIENT = Limits(cpu_s=20, wall_s=0.5)  # for programs that sleep


def function(source, *arguments):
    return Program(source, "f", plain_data.encode([list(item) for item in arguments]))


def values(execution):
    return [output.value for output in execution.outputs]


def test_results_come_back_in_order_whatever_ends_first():
    programs = [
        function(f"import time\ndef f(x):\n    time.sleep({0.02 * (i % 3)})\n    return x + {i}", (1,), (10,))
        for i in range(12)
    ]
    executions = run_batch(programs, workers=4)
    assert [values(execution) for execution in executions] == [[1 + i, 10 + i] for i in range(12)]
    assert {execution.status for execution in executions} == {"finished"}


@pytest.mark.parametrize(("processes", "at_once"), [(None, 9), ("1", 9), ("4", 3), ("16", 2)])
def test_processes_on_one_machine_share_its_cores(monkeypatch, processes, at_once):
    """With more programs than cores, right ones would reach their limits of wall time."""
    found, run = [], sandbox._run_until_lost
    monkeypatch.setattr(sandbox, "available_cores", lambda: 8)
    monkeypatch.setattr(sandbox, "_run_until_lost", lambda *given: found.append(given[2]) or run(*given))
    if processes is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    assert values(run_batch([function("def f(x):\n    return x", (1,))])[0]) == [1]
    assert found == [at_once]


def test_no_programs_need_no_sandbox(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert run_batch([]) == []


def test_values_keep_their_types_through_the_wall():
    inputs = [([1, (2.5, None)], {"a": {1, 2}}, b"\x00", 1 + 2j, 10**400, "\ud800é")]
    (execution,) = run_batch([function("def f(*x): return x", *inputs)])
    assert values(execution) == inputs


@pytest.mark.parametrize(
    ("source", "status", "detail"),
    [
        ("def f(x): return x", "finished", ""),
        ("def f(x): raise KeyError", "crash", "KeyError"),
        ("def f(x): return 1 +", "crash", "SyntaxError"),
        ("def g(x): return x", "crash", "KeyError"),
        ("import os\ndef f(x): os._exit(0)", "crash", "exit 0"),
        ("import ctypes\ndef f(x): ctypes.string_at(0)", "crash", "signal 11"),
        ("def f(x): return [0] * 10 ** 10", "memory", "MemoryError"),
        ("def f(x):\n    while True: pass", "timeout", "cpu limit"),
        ("import time\ndef f(x): time.sleep(60)", "timeout", "wall limit"),
        ("def f(x): return 'a' * 10 ** 7", "rejected", "too much output"),
        ("import os\ndef f(x): os.write(5, b'[1]\\n')", "rejected", "malformed results"),
    ],
)
def test_status_tells_what_happened(source, status, detail):
    limits = IMPATIENT if "sleep" in source else SHORT
    (execution,) = run_batch([function(source, (1,))], limits, workers=1)
    assert (execution.status, execution.detail) == (status, detail)


def test_a_program_that_a_busy_machine_may_have_delayed_is_tried_again():
    waits = "import time\ndef f(x): time.sleep(1.5); return x"
    rests = "import time\ndef f(x): time.sleep(60)"
    fine, never = run_batch([function(waits, (1,)), function(rests, (1,))], IMPATIENT)
    assert values(fine) == [1] and fine.wall_s > IMPATIENT.wall_s
    assert never.status == "timeout" and never.wall_s > 2 * IMPATIENT.wall_s


def test_what_the_system_needs_to_give_out_memory_is_not_held_against_a_program():
    touches = "def f(x):\n    for _ in range(x): bytearray(200_000_000)\n    return x"
    loops = "def f(x):\n    while True: pass"
    touching, looping = run_batch([function(touches, (4,)), function(loops, (1,))], SHORT)
    assert values(touching) == [4]
    assert looping.status == "timeout" and looping.cpu_s < 2 * SHORT.cpu_s


def test_results_before_the_end_are_kept():
    source = "def f(x):\n    while x == 3: pass\n    return x if x < 2 else object()"
    (execution,) = run_batch([function(source, (1,), (2,), (3,), (4,))], SHORT)
    assert execution.status == "timeout"
    assert [(output.kind, output.text) for output in execution.outputs] == [
        ("value", "1"),
        ("opaque", "type object"),
    ]


def test_scripts_read_and_write_their_own_streams():
    echo = "import sys\nfor line in sys.stdin: print(line.strip()[::-1])\n"
    fails = "print('a')\nraise SystemExit(3)"
    guarded = "if __name__ == '__main__': print(input())"
    executions = run_batch(
        [
            Program(echo, stdin="abc\ndéf\n"),
            Program(echo, stdin=""),
            Program(fails),
            Program(guarded, stdin="x"),
            Program("while True: print('a' * 1000)"),
        ],
        SHORT,
    )
    assert [(e.status, e.stdout) for e in executions[:4]] == [
        ("finished", "cba\nféd\n"),
        ("finished", ""),
        ("crash", "a\n"),
        ("finished", "x\n"),
    ]
    assert executions[2].detail == "exit 3"
    assert executions[4].status in ("rejected", "timeout")


def test_judgement_does_not_vary_with_hashes_or_random_numbers():
    source = "import random\ndef f(): return [list({'a', 'b', 'c', 'd', 'e'}), random.random()]"
    first, second = (values(run_batch([function(source, ())])[0]) for _ in range(2))
    assert first == second


def test_programs_of_a_batch_share_nothing():
    marker = "marker-" + "of-a-sibling"
    sibling = function(
        f"secret = {marker!r}\nimport json, builtins\njson.leak = builtins.leak = secret\n", (1,)
    )
    search = function(
        """
import builtins, gc, json, os, sys
def f(x):
    part = "".join(["-of-a", "-sib", "ling"])
    found = [hasattr(json, "leak"), hasattr(builtins, "leak")]
    seen = gc.get_objects()
    for thing in list(seen):
        seen.extend(gc.get_referents(thing))
    found.append(any(isinstance(thing, (str, bytes)) and part in str(thing) and thing is not part
                     for thing in seen))
    return found
""",
        (1,),
    )
    executions = run_batch([sibling, search] * 3, workers=1)
    assert [values(execution) for execution in executions[1::2]] == [[[False, False, False]]] * 3


def test_a_loop_does_not_hold_up_the_others():
    order = []
    original = sandbox._judge_end

    def spy(program, entry, report):
        order.append(report["id"])
        return original(program, entry, report)

    loop = function("def f(x):\n    while True: pass", (1,))
    quick = function("def f(x): return x", (1,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox, "_judge_end", spy)
        executions = run_batch([loop, *[quick] * 10], SHORT, workers=2)
    assert [execution.status for execution in executions] == ["timeout"] + ["finished"] * 10
    assert order[-1] == 0


# --- when the sandbox itself fails --------------------------------------------------------------------------


def test_a_missing_bubblewrap_names_the_line_to_install_it(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with refused("bwrap", "apt-get install"):
        run_batch([function("def f(x): return x", (1,))])
    sandbox_available.cache_clear()
    available, reason = sandbox_available()
    sandbox_available.cache_clear()
    assert not available and "apt-get install" in reason


def test_a_kernel_that_refuses_is_quoted(monkeypatch, tmp_path):
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with refused("sandbox", "bwrap: No permissions to create a new namespace"):
        run_batch([function("def f(x): return x", (1,))])


def test_a_child_that_cannot_be_set_up_is_infrastructure_and_not_the_program():
    broken, sound = Program("def f(x): return x", "f", "no inputs"), function("def f(x): return x", (1,))
    executions = run_batch([broken, sound])
    assert [execution.status for execution in executions] == ["infrastructure", "finished"]
    assert "malformed" in executions[0].detail


def test_programs_survive_the_loss_of_the_sandbox(monkeypatch):
    started = []

    class Spied(bubblewrap.Sandbox):
        def __init__(self):
            super().__init__()
            started.append(self._process.pid)

    monkeypatch.setattr(sandbox, "Sandbox", Spied)

    def kill_the_first():
        while not started:
            time.sleep(0.01)
        time.sleep(0.15)
        os.kill(started[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_the_first)
    killer.start()
    programs = [function("import time\ndef f(x):\n    time.sleep(0.3)\n    return x", (i,)) for i in range(5)]
    executions = run_batch(programs, workers=2)
    killer.join()
    assert [values(execution) for execution in executions] == [[i] for i in range(5)]
    assert len(started) == 4  # the first, one for each program in flight, one for the rest


def test_a_program_that_takes_the_sandbox_down_every_time_is_a_crash_and_the_others_are_judged(monkeypatch):
    original = sandbox._submit
    fatal = function("def f(x): return 'fatal'", (1,))

    def submit(box, index, program, limits, shared):
        if program is fatal:
            box._control.shutdown(socket.SHUT_RDWR)
        return original(box, index, program, limits, shared)

    monkeypatch.setattr(sandbox, "_submit", submit)
    quick = function("def f(x): return x", (7,))
    executions = run_batch([quick, fatal, quick], workers=1)
    assert [execution.status for execution in executions] == ["finished", "crash", "finished"]
    assert executions[1].detail == "took the sandbox down"


def test_nothing_is_left_open():
    def descriptors():
        return len(list(Path("/proc/self/fd").iterdir()))

    run_batch([function("def f(x): return x", (1,))])
    before = descriptors()
    run_batch(
        [
            function("def f(x): return x", (1,)),
            Program("print(1)"),
            function("def f(x): return 'a'*10**7", (1,)),
        ]
    )
    assert descriptors() == before
