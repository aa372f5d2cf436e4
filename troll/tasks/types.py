"""The types of tasks, problems, demonstrations and rewards."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic.fields import FieldInfo

from troll.common.errors import UserError
from troll.common.files import read_jsonl
from troll.common.settings import Settings

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes:
        task_id: unique name, ``<task>/<split>/<number>``.
        prompt: what the model reads, in a chat as the user's turn.
        answer: reference answer of a mathematics problem, or canonical solution of a code problem.
        level: difficulty, as the task defines it.
        record: the source record, in the form that the task's verifier reads.
        system: the system turn before the prompt, if the source has one.
    """

    task_id: str
    prompt: str
    answer: str
    level: int = 0
    record: Mapping[str, Any] = field(default_factory=dict)
    system: str = ""

    def as_row(self) -> dict[str, Any]:
        """Returns the problem as a row of a JSON-lines file."""
        row = {**self.record, "task_id": self.task_id, "prompt": self.prompt, "level": self.level}
        return row | ({"system": self.system} if self.system else {})


@dataclass(frozen=True)
class Demonstration:
    """A prompt with a completion to imitate, right or wrong."""

    prompt: str
    completion: str


Reward = Callable[[Sequence[Problem], Sequence[str]], list[float]]
"""Maps problems and completions, in equal number, to rewards: 1.0 for right, 0.0 for wrong, and with partial
credit (``tests: fraction``) a share.
"""


@dataclass(frozen=True)
class Task:
    r"""A task: its problems, its verifier and its demonstrations.

    Demonstrations of the testbed's tasks are partly flawed; those of a data set are its solutions.

    Attributes:
        name: the name used in experiment files.
        summary: description of one line.
        kind: ``math`` (answer in ``\boxed{}``) or ``code`` (a function body, run in the sandbox). The final
            evaluation grades by the kind, not by ``reward``.
        answer_key: the field of a record that holds the reference answer.
        generate: (split, count, seed, settings) to problems; splits never overlap.
        demonstrate: (count, seed, settings) to demonstrations on train problems.
        reward: the verifier used in training and validation.
        model: the class of the generator's settings, with defaults and bounds; not a language model.
        as_written: for code: whether a completion, or its fenced block, is judged as it is. A reward that
            searches the completion for the program teaches a model to write anything around it.
    """

    name: str
    summary: str
    kind: Literal["math", "code"]
    answer_key: str
    generate: Callable[[Split, int, int, Mapping[str, Any]], list[Problem]]
    demonstrate: Callable[[int, int, Mapping[str, Any]], list[Demonstration]]
    reward: Reward
    model: type[Settings] = Settings
    as_written: bool = False

    @property
    def settings(self) -> Mapping[str, FieldInfo]:
        """The fields of its settings, by name."""
        return self.model.model_fields

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults of its settings, by name."""
        return self.model.defaults()

    def checked(self, row: Mapping[str, Any], where: str, needed: tuple[str, ...] = ()) -> Mapping[str, Any]:
        """Returns a row of problems, with an answer that is a number as text.

        Raises:
            UserError: a field is missing, or of another type; the message begins with ``where``.
        """
        for key in (*needed, "prompt", self.answer_key):
            if key not in row:
                raise UserError(f"{where}: no field {key!r} in a problem of task {self.name}")
        answer = row[self.answer_key]
        if isinstance(answer, int | float) and not isinstance(answer, bool):
            answer = str(int(answer)) if isinstance(answer, float) and answer.is_integer() else str(answer)
            row = {**row, self.answer_key: answer}
        types = {"task_id": str | int, "prompt": str, self.answer_key: str, "level": int}
        for key, kind in types.items():
            if key in row and not isinstance(row[key], kind):
                wanted = "a whole number" if kind is int else "text"
                raise UserError(f"{where}: {key!r} is {row[key]!r}; must be {wanted}")
        return row

    def load(self, path: Path) -> list[Problem]:
        """Reads problems from a JSON-lines file with rows as of `Problem.as_row`."""
        problems: list[Problem] = []
        lines: dict[str, int] = {}
        for number, read in enumerate(read_jsonl(path), start=1):
            row = self.checked(read, f"{path}:{number}", ("task_id",))
            if (first := lines.setdefault(row["task_id"], number)) != number:
                raise UserError(
                    f"{path}:{number}: task_id {row['task_id']!r} is also in line {first}; every problem "
                    "needs its own task_id"
                )
            problems.append(
                Problem(
                    row["task_id"],
                    row["prompt"],
                    row[self.answer_key],
                    row.get("level", 0),
                    row,
                    str(row.get("system", "")),
                )
            )
        if not problems:
            raise UserError(f"{path}: holds no problems")
        return problems
