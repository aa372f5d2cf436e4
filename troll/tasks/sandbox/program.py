"""What goes into the sandbox, a program with its limits, and what comes out: an execution with outputs."""

from dataclasses import dataclass
from typing import Any, Literal

from troll.tasks.sandbox import plain_data

Status = Literal["finished", "timeout", "memory", "crash", "rejected", "infrastructure"]


@dataclass(frozen=True)
class Limits:
    """Limits of one program.

    Attributes:
        cpu_s: CPU seconds, measured by the runner.
        wall_s: seconds of wall time, for programs that sleep.
        memory_bytes: address space.
        spare_memory_bytes: address space of the second try of a program that lacked memory. Only as many of
            these run at a time as fit into half of the machine's free memory. The default is evalplus' limit.
        output_bytes: encoded results or standard output; more is rejected.

    A busy machine, or one that is slow to give out memory, must turn no right program into a wrong one: a
    program that runs out of wall time, or of CPU time that was the system's more than its own, gets a second
    try. All second tries have 3 s more of CPU time and 6 s more of wall time.
    """

    cpu_s: float = 1.0
    wall_s: float = 2.0
    memory_bytes: int = 512 * 2**20
    spare_memory_bytes: int = 4 * 2**30
    output_bytes: int = 4 * 2**20


@dataclass(frozen=True)
class Program:
    """A program to run.

    Attributes:
        source: Python source text; with a prompt, what a model wrote after it, in which ``extraction.py``
            looks for the program, inside the sandbox.
        entry_point: the function to call once per input; None runs the source as a script.
        inputs: ``plain_data.encode`` of a list of argument lists. Programs that share one string share its
            memory.
        stdin: standard input of a script.
        limits: of this program, in place of the batch's.
        prompt: what a model continued; None for source text that is run as it is.
        name: the function that the model was asked for, if that is not the entry point.
        after: source text to run in the same module after the model's.
        as_written: whether what a model wrote is run without looking for the program in it, but for a fence.
    """

    source: str
    entry_point: str | None = None
    inputs: str = "[]"
    stdin: str = ""
    limits: Limits | None = None
    prompt: str | None = None
    name: str | None = None
    after: str = ""
    as_written: bool = False


@dataclass(frozen=True)
class Output:
    """The result of one call.

    Attributes:
        kind: ``value`` (plain data), ``opaque`` (a value of a forbidden type) or ``raised``.
        text: the encoded value, the reason or the exception's type name.
    """

    kind: Literal["value", "opaque", "raised"]
    text: str

    @property
    def value(self) -> Any:
        """The value, decoded anew each time: kept, it may be many times as large as its text.

        Raises:
            plain_data.NotPlainError: the text is not an encoded value.
        """
        return plain_data.decode(self.text)


@dataclass(frozen=True)
class Execution:
    """What a program did.

    Attributes:
        status: ``finished`` (every call returned, or a script exited with 0), ``timeout``, ``memory``,
            ``crash`` (an exception, a signal or an early exit), ``rejected`` (malformed or too much
            output), or ``infrastructure``: the sandbox failed, which says nothing about the program.
        outputs: one per call that ended, in input order, the last possibly ``raised``.
        stdout: standard output of a script.
        detail: a few words on the cause.
        cpu_s: CPU seconds used.
        user_s: those of them that the program itself used, and not the system for it.
        wall_s: wall seconds from fork to exit.
    """

    status: Status
    outputs: tuple[Output, ...] = ()
    stdout: str = ""
    detail: str = ""
    cpu_s: float = 0.0
    user_s: float = 0.0
    wall_s: float = 0.0
