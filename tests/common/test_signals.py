"""Signals are held back and found where they are looked for, in this process or told by its launcher."""

import os
import signal
import subprocess
import sys

import pytest

from troll.common.errors import Stopped
from troll.common.signals import SIGNAL_NOTE, held_signal, stop_if_asked

HOLD = """
import os, signal, subprocess, sys
from troll.common.signals import held_signal, hold_signals
hold_signals()
assert held_signal() is None
# A child inherits the mask: what is sent to the whole job leaves it alone.
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.3)"])
for number in (signal.SIGTERM, signal.SIGUSR1):
    os.kill(child.pid, number)
    os.kill(os.getpid(), number)
assert child.wait() == 0
print(held_signal().name)
"""


def test_signals_wait_for_a_good_moment_and_spare_children():
    found = subprocess.run([sys.executable, "-c", HOLD], capture_output=True, text=True)
    assert found.stdout.strip() == "SIGUSR1", found.stderr


def test_a_launcher_tells_its_processes_in_a_file(tmp_path, monkeypatch):
    note = tmp_path / "signal"
    monkeypatch.setenv(SIGNAL_NOTE, str(note))
    assert held_signal() is None
    note.write_text(str(int(signal.SIGTERM)))
    assert held_signal() == signal.SIGTERM
    with pytest.raises(Stopped, match="a run: stopped by SIGTERM; the same command goes on") as stopped:
        stop_if_asked("a run")
    assert stopped.value.signal == signal.SIGTERM and os.environ[SIGNAL_NOTE]
