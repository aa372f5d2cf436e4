"""The sandbox's input, a program with its limits, and its result, an execution with outputs."""

from dataclasses import dataclass
from typing import Any, Literal

from troll.tasks.sandbox import plain_data

Status = Literal["finished", "timeout", "memory", "crash", "rejected", "infrastructure"]


@dataclass(frozen=True)
class Limits:
    """Limits of one program.

    A machine that is busy, or slow to provide memory, must not make a right program count as wrong: a program
    that runs out of wall time, or of CPU time that was mostly the system's, gets a second try. Every second
    try has 3 s more CPU time and 6 s more wall time.
    """

    cpu_s: float = 1.0  # CPU seconds, measured by the runner
    wall_s: float = 2.0  # seconds of wall time, for programs that sleep
    memory_bytes: int = 512 * 2**20  # address space
    # address space of the second try of a program that lacked memory (evalplus' limit). Only as many second
    # tries run at a time as fit into half of the machine's free memory
    spare_memory_bytes: int = 4 * 2**30
    output_bytes: int = 4 * 2**20  # encoded results or standard output; programs with more are rejected


@dataclass(frozen=True)
class Program:
    """A program to run."""

    # Python source text or, with a prompt, a completion, in which ``extraction.py`` finds the program inside
    # the sandbox
    source: str
    entry_point: str | None = None  # the function to call once per input; None runs the source as a script
    # ``plain_data.encode`` of a list of argument lists; programs that share one string share its memory
    inputs: str = "[]"
    stdin: str = ""  # standard input of a script
    limits: Limits | None = None  # of this program, in place of the batch's
    prompt: str | None = None  # what the model continued; None for source text that is run as it is
    name: str | None = None  # the function that the model was asked for, if that is not the entry point
    after: str = ""  # source text that is run in the same module after the model's
    as_written: bool = False  # whether the completion, or its fenced block, is run without further search


@dataclass(frozen=True)
class Output:
    """The result of one call."""

    kind: Literal["value", "opaque", "raised"]  # plain data, a value of a forbidden type, an exception
    text: str  # the encoded value, the reason or the exception's type name

    @property
    def value(self) -> Any:
        """The value, decoded on each access: in memory it may be many times as large as its text.

        Raises:
            plain_data.NotPlainError: the text is not an encoded value.
        """
        return plain_data.decode(self.text)


@dataclass(frozen=True)
class Execution:
    """What a program did."""

    # ``finished`` (every call returned, or a script exited with 0), ``timeout``, ``memory``, ``crash`` (an
    # exception, a signal or an early exit), ``rejected`` (malformed or too much output), or
    # ``infrastructure``: the sandbox failed, which says nothing about the program
    status: Status
    outputs: tuple[Output, ...] = ()  # one per call that ended, in input order, the last possibly ``raised``
    stdout: str = ""  # standard output of a script
    detail: str = ""  # the cause, in a few words
    cpu_s: float = 0.0  # CPU seconds used
    user_s: float = 0.0  # those of them in user mode, without the system's
    wall_s: float = 0.0  # wall seconds from fork to exit
