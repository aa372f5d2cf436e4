"""The two judges of code on the same programs: ours, and evalplus' own evaluator in the sandbox."""

from collections.abc import Mapping, Sequence
from typing import Any

from troll.common.errors import UserError
from troll.evaluation.audit.honest_programs import HONEST_PROGRAMS, WITH_FILES
from troll.evaluation.audit.hostile_programs import HOSTILE_PROGRAMS, PROBLEM
from troll.evaluation.evalplus.check import evalplus_verdicts, evalplus_version
from troll.tasks.datasets.load import Loaded
from troll.tasks.sandbox.bubblewrap import program_namespaces
from troll.tasks.verifiers.code import verify_code
from troll.tasks.verifiers.extraction import whole_program

_SETS = {"humaneval+": "humaneval", "mbpp+": "mbpp"}


def code_judges(data: Mapping[str, Loaded], *, hostile: bool) -> list[dict[str, Any]]:
    """Judges unusual honest programs, canonical solutions and, if asked for, hostile programs in both ways.

    Args:
        data: test splits by name; canonical solutions of HumanEval+ and MBPP+, if they are there.
        hostile: judge the hostile programs too, which takes evalplus a minute.

    Returns:
        A row per kind of program: ``set``, ``programs``, how many ``both`` accept, only ``troll``, only
        ``evalplus``, or ``neither``, the ``names`` of those that decide (refused ones with our status), and
        ``ok``: we refuse no honest program that evalplus accepts, and accept no hostile one. No rows without
        evalplus; no programs with files where the kernel gives them no directory of their own.

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
    rows = [_of_corpus("unusual honest programs", possible, honest=True)]
    for name, dataset in _SETS.items():
        if name in data:
            problems = data[name].problems
            records = [problem.record for problem in problems]
            answers = [problem.answer for problem in problems]
            names = [problem.task_id for problem in problems]
            rows.append(_row(f"{name} solutions", names, dataset, records, answers, honest=True))
    if hostile:
        rows.append(_of_corpus("hostile programs", HOSTILE_PROGRAMS, honest=False))
    return rows


def _of_corpus(title: str, programs: Mapping[str, str], *, honest: bool) -> dict[str, Any]:
    return _row(
        title, list(programs), "humaneval", [PROBLEM] * len(programs), list(programs.values()), honest=honest
    )


def _row(
    title: str,
    names: Sequence[str],
    dataset: str,
    records: Sequence[Mapping[str, Any]],
    completions: Sequence[str],
    *,
    honest: bool,
) -> dict[str, Any]:
    verdicts = verify_code(records, completions)
    ours = [verdict.passed for verdict in verdicts]
    by_id = {str(record["task_id"]): record for record in records}
    samples = [
        (str(record["task_id"]), whole_program(record["prompt"], text, record["entry_point"]))
        for record, text in zip(records, completions, strict=True)
    ]
    theirs = [bool(verdict.passed) for verdict in evalplus_verdicts(dataset, by_id, samples)]
    pairs = list(zip(ours, theirs, strict=True))
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
