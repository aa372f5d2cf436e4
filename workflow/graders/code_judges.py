"""Comparison of two judges of code on the same programs: ours, and evalplus' evaluator in the sandbox."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cases import SHAPE_PROMPT, SHAPES
from honest_programs import HONEST_PROGRAMS, RETURNED_VALUES, WITH_FILES
from hostile_programs import HOSTILE_PROGRAMS, PROBLEM
from troll.common.errors import UserError
from troll.evaluation.evalplus.check import evalplus_verdicts, evalplus_version
from troll.tasks.datasets.load import Loaded
from troll.tasks.sandbox.bubblewrap import program_namespaces
from troll.tasks.verifiers.code import verify_code

_SETS = {"humaneval+": "humaneval", "mbpp+": "mbpp"}
_SHAPED = {**PROBLEM, "prompt": SHAPE_PROMPT, "canonical_solution": "    return 3 * x + 1\n"}


def code_judges(data: Mapping[str, Loaded], *, hostile: bool) -> list[dict[str, Any]]:
    """Judges honest programs, canonical solutions and optionally further programs by both judges.

    Args:
        data: test splits by name; uses the canonical solutions of HumanEval+ and MBPP+ if present.
        hostile: also judge the hostile programs, which takes evalplus a minute, and answers in many formats,
            from which evalplus' sanitizer extracts the program, with and without the preceding prompt; either
            may pass.

    Returns:
        A row per kind of program: ``set``, ``programs``, how many are accepted by ``both``, only ``troll``,
        only ``evalplus``, or ``neither``, the ``names`` of those that decide (rejected ones with our status),
        and ``ok``: our judge accepts every honest program that evalplus accepts, and no hostile one. Empty
        without evalplus; without programs that use files if the kernel cannot give them a private directory.

    Raises:
        UserError: the sandbox is missing.
    """
    try:
        evalplus_version()
    except UserError:
        return []
    possible = {
        name: source
        for name, source in HONEST_PROGRAMS.items()
        if name not in WITH_FILES or program_namespaces()
    }
    rows = [
        _row("unusual honest programs", list(possible), "humaneval", *_asked(possible)),
        _row("values of unusual types", list(RETURNED_VALUES), "humaneval", *returning_programs()),
    ]
    for name, dataset in _SETS.items():
        if name in data:
            problems = data[name].problems
            records = [problem.record for problem in problems]
            answers = [problem.answer for problem in problems]
            names = [problem.task_id for problem in problems]
            rows.append(_row(f"{name} solutions", names, dataset, records, answers))
    if hostile:
        shapes = [_SHAPED] * len(SHAPES), list(SHAPES.values())
        rows.append(_row("shapes of answers", list(SHAPES), "humaneval", *shapes, theirs=_sanitized))
        hostiles = _asked(HOSTILE_PROGRAMS)
        rows.append(_row("hostile programs", list(HOSTILE_PROGRAMS), "humaneval", *hostiles, honest=False))
    return rows


def returning_programs() -> tuple[list[dict[str, Any]], list[str]]:
    """Problems whose references return each of `RETURNED_VALUES`, and the answers."""
    records = [
        {**PROBLEM, "task_id": f"values/{name}", "canonical_solution": f"def f(x):\n    return {reference}\n"}
        for name, (reference, _, _) in RETURNED_VALUES.items()
    ]
    answers = [f"{before}def f(x):\n    return {value}\n" for _, before, value in RETURNED_VALUES.values()]
    return records, answers


def _asked(programs: Mapping[str, str]) -> tuple[list[Mapping[str, Any]], list[str]]:
    return [PROBLEM] * len(programs), list(programs.values())


def _evaluated(dataset: str, records: Sequence[Mapping[str, Any]], completions: Sequence[str]) -> list[bool]:
    """Verdicts of evalplus' evaluator on the programs that we extract."""
    by_id, samples = _samples(records, completions)
    return [
        bool(verdict.passed) for verdict in evalplus_verdicts(dataset, by_id, samples, extraction="troll")
    ]


def _sanitized(dataset: str, records: Sequence[Mapping[str, Any]], completions: Sequence[str]) -> list[bool]:
    """Verdicts of evalplus' evaluator on programs that its sanitizer extracts, with or without the prompt."""
    by_id, samples = _samples(records, completions)
    after = [(name, f"{by_id[name]['prompt']}\n{text}") for name, text in samples]
    found = evalplus_verdicts(dataset, by_id, [*after, *samples], extraction="sanitizer")
    both = zip(found[: len(samples)], found[len(samples) :], strict=True)
    return [bool(one.passed or other.passed) for one, other in both]


def _samples(
    records: Sequence[Mapping[str, Any]], completions: Sequence[str]
) -> tuple[dict[str, Mapping[str, Any]], list[tuple[str, str]]]:
    by_id = {str(record["task_id"]): record for record in records}
    return by_id, [(str(record["task_id"]), text) for record, text in zip(records, completions, strict=True)]


def _row(
    title: str,
    names: Sequence[str],
    dataset: str,
    records: Sequence[Mapping[str, Any]],
    completions: Sequence[str],
    *,
    honest: bool = True,
    theirs: Callable[..., list[bool]] = _evaluated,
) -> dict[str, Any]:
    verdicts = verify_code(records, completions)
    ours = [verdict.passed for verdict in verdicts]
    pairs = list(zip(ours, theirs(dataset, records, completions), strict=True))
    if honest:
        decisive = [
            f"{name}: {verdict.status}"
            for name, verdict, (own, their) in zip(names, verdicts, pairs, strict=True)
            if their and not own
        ]
    else:
        decisive = [name for name, own in zip(names, ours, strict=True) if own]
    return {
        "set": title,
        "programs": len(names),
        "both": pairs.count((True, True)),
        "troll": pairs.count((True, False)),
        "evalplus": pairs.count((False, True)),
        "neither": pairs.count((False, False)),
        "names": decisive,
        "ok": not decisive,
    }
