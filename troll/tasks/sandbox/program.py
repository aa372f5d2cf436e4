"""What goes into the sandbox, a program with its limits, and what comes out: an execution with outputs."""

from dataclasses import dataclass
from typing import Any, Literal

from troll.tasks.sandbox import plain_data

Status = Literal["finished", "timeout", "memory", "crash", "rejected", "infrastructure"]


@dataclass(frozen=True)
class Limits:
    """Limits of one program.

    A busy machine, or one that is slow to give out memory, must turn no right program into a wrong one: a
    program that runs out of wall time, or of CPU time that was the system's more than its own, gets a second
    try. All second tries have 3 s more of CPU time and 6 s more of wall time.
    """

    cpu_s: float = 1.0  # CPU seconds, measured by the runner
    wall_s: float = 2.0  # seconds of wall time, for programs that sleep
    memory_bytes: int = 512 * 2**20  # address space
    # address space of the second try of a program that lacked memory: evalplus' limit. Only as many of these
    # run at a time as fit into half of the machine's free memory
    spare_memory_bytes: int = 4 * 2**30
    output_bytes: int = 4 * 2**20  # encoded results or standard output; more is rejected


@dataclass(frozen=True)
class Program:
    """A program to run."""

    # Python source text; with a prompt, what a model wrote after it, in which ``extraction.py`` looks for the
    # program, inside the sandbox
    source: str
    entry_point: str | None = None  # the function to call once per input; None runs the source as a script
    # ``plain_data.encode`` of a list of argument lists; programs that share one string share its memory
    inputs: str = "[]"
    stdin: str = ""  # standard input of a script
    limits: Limits | None = None  # of this program, in place of the batch's
    prompt: str | None = None  # what a model continued; None for source text that is run as it is
    name: str | None = None  # the function that the model was asked for, if that is not the entry point
    after: str = ""  # source text to run in the same module after the model's
    as_written: bool = False  # whether no program is looked for in what a model wrote, but for a fence


@dataclass(frozen=True)
class Output:
    """The result of one call."""

    kind: Literal["value", "opaque", "raised"]  # plain data, a value of a forbidden type, an exception
    text: str  # the encoded value, the reason or the exception's type name

    @property
    def value(self) -> Any:
        """The value, decoded anew each time: kept, it may be many times as large as its text.

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
    detail: str = ""  # a few words on the cause
    cpu_s: float = 0.0  # CPU seconds used
    user_s: float = 0.0  # those of them that the program itself used, and not the system for it
    wall_s: float = 0.0  # wall seconds from fork to exit
