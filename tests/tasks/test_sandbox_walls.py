"""The walls around one program: each alone keeps it from its neighbours; what honest ones need is there."""

import shutil
import threading
import time
from pathlib import Path

import pytest

from hostile_neighbours import NEIGHBOURS
from hostile_programs import HOSTILE_PROGRAMS
from troll.tasks.sandbox import bubblewrap, plain_data, pool, syscall_filter
from troll.tasks.sandbox.bubblewrap import program_namespaces
from troll.tasks.sandbox.pool import Limits, Program, run_batch, sandbox_available

pytestmark = pytest.mark.skipif(not sandbox_available()[0], reason=f"no sandbox: {sandbox_available()[1]}")

LIMITS = Limits(cpu_s=0.5, wall_s=20)
NEIGHBOUR = "import time\ndef f(x):\n    time.sleep(0.4)\n    return x\n"
SIGNALS = [
    name
    for name in NEIGHBOURS
    if name.startswith(("owner", "kill", "stop each", "tkill", "tgkill", "rt_", "pidfd_send", "interrupt"))
]
CONTROL = [name for name in NEIGHBOURS if name.endswith(" each") and name not in SIGNALS]


def function(source, *arguments):
    return Program(source, "f", plain_data.encode([list(item) for item in arguments]))


def value(source, limits=LIMITS):
    (execution,) = run_batch([function(source, (1,))], limits)
    return execution.outputs[0].value if execution.status == "finished" else execution


def neighbours_survive(names):
    """Every attack runs while two honest programs sleep; they must wake up and answer."""
    programs = [function(NEIGHBOUR, (7,)), function(NEIGHBOUR, (7,))]
    attacks = [function(HOSTILE_PROGRAMS[name], (1,)) for name in names]
    found = run_batch([*programs, *attacks, *programs], Limits(0.5, 5), workers=len(attacks) + 4)
    honest = [*found[:2], *found[-2:]]
    return [item.status for item in honest] == ["finished"] * 4


def without(monkeypatch, tmp_path, *, filtering=True, landlock=True, namespaces=True):
    """A sandbox that lacks some of its walls."""
    here = Path(bubblewrap.__file__).parent
    for name in bubblewrap._INSIDE:
        shutil.copy(here / name, tmp_path)
    inside = tmp_path / "syscall_filter.py"
    text = inside.read_text()
    if not filtering:
        text += "def _install(*_): return os.open('/dev/null', 0)\n"
    if not landlock:
        text = text.replace("    scope_signals()\n", "")
    inside.write_text(text)
    monkeypatch.setattr(bubblewrap, "__file__", str(tmp_path / "bubblewrap.py"))
    if not namespaces:
        monkeypatch.setattr(bubblewrap.Sandbox, "__init__", lambda self: self._start([]))


def test_the_filter_alone_keeps_neighbours_alive(monkeypatch, tmp_path):
    without(monkeypatch, tmp_path, landlock=False, namespaces=False)
    assert not program_namespaces.__wrapped__()
    assert neighbours_survive(SIGNALS + CONTROL)


def test_pid_namespaces_alone_keep_neighbours_alive(monkeypatch, tmp_path):
    if not program_namespaces():
        pytest.skip("no pid namespaces here")
    without(monkeypatch, tmp_path, filtering=False, landlock=False)
    assert neighbours_survive(SIGNALS + CONTROL)


def test_landlock_alone_keeps_signals_in(monkeypatch, tmp_path):
    if syscall_filter._landlock_version() < syscall_filter._LANDLOCK_SCOPED_SINCE:
        pytest.skip("no Landlock scopes here")
    without(monkeypatch, tmp_path, filtering=False, namespaces=False)
    assert neighbours_survive(SIGNALS)


def test_without_any_wall_the_same_attacks_kill(monkeypatch, tmp_path):
    """Else the three tests above would show nothing."""
    without(monkeypatch, tmp_path, filtering=False, landlock=False, namespaces=False)
    assert not all(
        neighbours_survive(["owner by F_SETOWN"]) for _ in range(5)
    )  # on a busy machine one may miss


def test_what_is_denied_is_an_error_for_the_program_and_no_more():
    names = SIGNALS + CONTROL
    found = run_batch([function(HOSTILE_PROGRAMS[name], (1,)) for name in names], LIMITS)
    assert [name for name, item in zip(names, found, strict=True) if item.status != "finished"] == []


def test_a_program_is_alone_in_its_namespace():
    if not program_namespaces():
        pytest.skip("no pid namespaces here")
    assert value("import os\ndef f(x): return [os.getpid(), os.getppid()]") == [1, 0]


def test_a_program_has_no_capabilities_left():
    source = """
import ctypes, struct
header, data = struct.pack("=Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
def f(x): return [ctypes.CDLL(None).capget(header, data), data.raw]
"""
    assert value(source) == [0, bytes(24)]


# --- threads ------------------------------------------------------------------------------------------------

START = """
import threading, time
threading.stack_size(1 << 16)
def f(x):
    for number in range(x):
        try: threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        except RuntimeError: return number
    return x
"""


def test_threads_of_a_program_are_limited_and_enough_for_honest_ones():
    found = run_batch([function(START, (50,)), function(START, (3000,))] * 2, LIMITS)
    assert [item.outputs[0].value for item in found] == [50, 63] * 2


def test_threads_that_ended_make_room():
    source = "import threading\ndef f(x):\n    for _ in range(300):\n"
    source += "        thread = threading.Thread(target=int); thread.start(); thread.join()\n    return 300"
    assert value(source) == 300


def test_who_asks_for_threads_in_vain_for_ever_is_stopped():
    (execution,) = run_batch([function(START.replace("return number", "pass"), (10**9,))], Limits(20, 60))
    assert (execution.status, execution.detail) == ("crash", "too many threads")


def test_a_program_that_hides_its_threads_gets_none():
    start = "getattr(__import__('_thr' + 'ead'), 'start_new_thr' + 'ead')"
    (execution,) = run_batch([function(f"def f(x): return {start}(int, ())", (1,))], LIMITS)
    assert (execution.status, execution.detail) == ("crash", "RuntimeError")


# --- files, numpy, memory -----------------------------------------------------------------------------------


def test_files_are_private_small_and_gone_afterwards():
    if not program_namespaces():
        pytest.skip("no pid namespaces here, so no directories either")
    write = "import os, time\ndef f(x):\n    open('mine', 'w').write('x'); time.sleep(0.2)\n"
    write += "    return os.listdir('/tmp')"
    found = run_batch([function(write, (number,)) for number in range(3)], LIMITS, workers=3)
    assert [item.outputs[0].value for item in found] == [["mine"]] * 3
    temporary = (
        "import tempfile\ndef f(x):\n    with tempfile.TemporaryFile() as file: return file.write(b'x' * x)"
    )
    small, large = run_batch([function(temporary, (10,)), function(temporary, (2**25,))], LIMITS)
    assert small.outputs[0].value == 10 and large.detail == "OSError"


def test_numpy_is_there_and_its_numbers_are_numbers():
    pytest.importorskip("numpy")
    source = "import numpy as np\ndef f(x):\n"
    source += "    return [np.int64(x), np.float64(0.5), np.bool_(x), {np.str_('a'): x}]"
    assert value(source) == [1, 0.5, True, {"a": 1}]
    (execution,) = run_batch([function("import numpy as np\ndef f(x): return np.arange(3)", (1,))], LIMITS)
    assert execution.outputs[0].kind == "opaque"


def test_a_program_that_lacks_memory_gets_a_second_try_with_more():
    source = "def f(x):\n    room = bytearray(700_000_000)\n    return room[x]"
    assert value(source, Limits(cpu_s=20, wall_s=60)) == 0
    (execution,) = run_batch([function(source, (1,))], Limits(20, 60, spare_memory_bytes=2**29))
    assert execution.status == "memory"


def test_a_second_try_has_time_to_touch_its_memory():
    spin = "    import time\n    while time.process_time() < 1.5: sum(range(20000))\n    return 0"
    (quick, hungry) = run_batch(
        [
            function(f"def f(x):\n{spin}", (1,)),
            function(f"def f(x):\n    room = bytearray(700_000_000)\n{spin}", (1,)),
        ],
        Limits(cpu_s=0.5, wall_s=20),
    )
    assert (quick.status, hungry.status) == ("timeout", "finished")


# --- what a batch keeps -------------------------------------------------------------------------------------


def test_results_that_wait_for_their_reduction_hold_up_new_programs(monkeypatch):
    monkeypatch.setattr(pool, "_WAITING_BYTES", 1000)
    done, most = [], []
    release = threading.Event()

    def reduce(number, execution):
        release.wait(5)
        done.append(number)
        return number, len(execution.outputs[0].text)

    submitted = []
    original = pool._submit

    def submit(sandbox, index, *rest):
        submitted.append(index)
        most.append(len(submitted) - len(done))
        return original(sandbox, index, *rest)

    monkeypatch.setattr(pool, "_submit", submit)
    threading.Timer(1.0, release.set).start()
    programs = [function("def f(x): return 'a' * 600", (1,)) for _ in range(12)]
    found = run_batch(programs, LIMITS, workers=2, reduce=reduce)
    assert found == [(number, 602) for number in range(12)]
    assert max(most) <= 5  # two that wait, two in flight, one that had just been reduced


def test_results_of_more_lines_than_calls_are_not_even_split():
    source = "import os\ndef f(x):\n    while True: os.write(5, b'\\n' * 4096)"
    start = time.monotonic()
    (execution,) = run_batch([function(source, (1,))], Limits(cpu_s=5, wall_s=30))
    assert execution.status == "rejected" and time.monotonic() - start < 20
