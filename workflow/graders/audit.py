"""Audit of the graders: right answers are accepted, wrong ones rejected, and hostile programs contained.

    python workflow/graders/audit.py --out audit                           # samples of the data sets
    python workflow/graders/audit.py --full --out results/released/graders/audit  # `make audit`: all of them

Reference solutions of every data set, paraphrases, wrong answers and a corpus of hostile programs are judged
by the functions that compute rewards and grades.
"""

import platform
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import typer

from audit_tables import contamination_table, speed_table, write_audit
from cases import CODE_CASES, EXPLANATIONS, MATH_CASES, RIGHT, WRONG
from code_judges import code_judges
from contamination import contamination
from hostile_fractions import CALLS, EARNED, HONEST, HOSTILE_FRACTIONS, TESTS, fenced
from hostile_programs import HOSTILE_PROGRAMS, PROBLEM
from notations import audit_forms, audit_pairs, by_notation, disagreement_table
from speed import speed
from troll.analysis.render.formats import to_markdown, write_table
from troll.cli.app import begin, main
from troll.cli.options import Log, Stem
from troll.common.errors import UserError
from troll.common.files import write_json
from troll.common.progress import say
from troll.common.seeding import derive_seed
from troll.tasks.datasets.catalogue import DATA_SETS
from troll.tasks.datasets.load import Loaded, load
from troll.tasks.sandbox.pool import Limits, sandbox_available
from troll.tasks.types import Problem
from troll.tasks.verifiers.code import code_fractions, verify_code
from troll.tasks.verifiers.math import judge_math

LEAST_RIGHT = 0.99
# Number of problems of each set in the fast mode, which takes 90 s on two cores.
_FAST = {"math": 40, "humaneval": 40, "mbpp": 40, "humaneval+": 12, "mbpp+": 16}
# Number of problems of each set whose answers are written in every notation, by whether the audit is full.
_FORMS = {True: 40, False: 4}
# Number of completions of each kind for the four judges of mathematics: searching whole texts is slow.
_COMPARED = 200
_HOSTILE_LIMITS = Limits(cpu_s=0.3, wall_s=2)
# Time allowed for an attack beyond its limits: start-up, clean-up and load on the machine.
_HOSTILE_SLACK_S = 3.0
# Neighbours run long enough to be attacked, and several are always running.
_HONEST = "import time\ndef f(x):\n    time.sleep(0.03)\n    return x + x + x + 1\n"
_HOSTILE_WORKERS = 6
_NAMED = 8  # maximum number of failures that the message names
_SHOWN = 200  # characters of a completion in the list of exceptions


def audit(*, full: bool = False) -> dict[str, Any]:
    """Audits the graders.

    Args:
        full: use all problems instead of samples, and include the contamination of DAPO-Math and the speed.

    Returns:
        ``mode``, ``ok``, ``cases`` (a row per data set and case), ``hostile`` (see `audit_hostile`),
        ``fractions`` (see `audit_fractions`), ``code_judges`` (see there), ``graders`` (see
        `disagreement_table`), ``pairs`` and ``forms`` (see `by_notation`), ``differences`` (pairs that
        evaluation by math-verify misjudges), ``misjudged`` (pairs and forms that rewards misjudge, must be
        empty), ``contamination``, ``speed``, ``exceptions`` (what rewards and code graders misjudged, with
        the cause if it is known), ``absent`` (reasons by data set), ``data`` (provenance by data set),
        ``python`` and ``seconds``.

    Raises:
        UserError: the sandbox is missing.
    """
    available, reason = sandbox_available()
    if not available:
        raise UserError(reason)
    start = time.monotonic()
    rows: list[dict[str, Any]] = []
    exceptions: list[dict[str, Any]] = []
    samples: dict[str, tuple[list[str], list[str]]] = {}
    data, absent = load_all()
    for name, loaded in data.items():
        problems = _chosen(loaded, full)
        cases = MATH_CASES if DATA_SETS[name].kind == "math" else CODE_CASES
        for case, write in cases.items():
            began = time.monotonic()
            texts = [write(problem) for problem in problems]
            statuses = _judge(name, problems, texts)
            published = None
            if DATA_SETS[name].kind == "math":
                answers = [problem.answer for problem in problems]
                published = list(judge_math(answers, texts)).count("passed") / len(texts)
                samples[f"{name}: {case}"] = (answers[:_COMPARED], texts[:_COMPARED])
            found = _exceptions(name, case, problems, texts, statuses)
            exceptions += found
            row = _row(loaded, case, statuses, found, published)
            rows.append(row | {"seconds": round(time.monotonic() - began, 1)})
        say(f"audit: {name} done, {time.monotonic() - start:.0f} s")
    pairs = audit_pairs()
    mathematics = {name: _chosen(part, full) for name, part in data.items() if DATA_SETS[name].kind == "math"}
    forms = audit_forms(mathematics, _FORMS[full])
    misjudged = [row for row in [*pairs, *forms] if row["reward"] != row["right"]]
    say(f"audit: notations done, {time.monotonic() - start:.0f} s")
    hostile = audit_hostile()
    say(f"audit: hostile programs done, {time.monotonic() - start:.0f} s")
    fractions = audit_fractions(full=full)
    say(f"audit: shares of tests done, {time.monotonic() - start:.0f} s")
    judges = code_judges(data if full else {}, hostile=full)
    say(f"audit: two judges of code done, {time.monotonic() - start:.0f} s")
    return {
        "mode": "full" if full else "fast",
        "ok": hostile["ok"]
        and fractions["ok"]
        and not misjudged
        and all(row["ok"] for row in [*rows, *judges]),
        "cases": rows,
        "hostile": hostile,
        "fractions": fractions,
        "code_judges": judges,
        "graders": disagreement_table(samples).to_dict("records"),
        "pairs": by_notation(pairs),
        "forms": by_notation(forms),
        "differences": [row for row in pairs if row["evaluation"] != row["right"]],
        "misjudged": misjudged,
        "contamination": dapo_contamination(data) if full and "dapo" in data else [],
        "speed": speed() if full and {"humaneval+", "math"} <= set(data) else [],
        "exceptions": exceptions,
        "absent": absent,
        "data": {name: dict(loaded.provenance) for name, loaded in data.items()},
        "python": platform.python_version(),
        "seconds": round(time.monotonic() - start, 1),
    }


def require_passed(result: Mapping[str, Any]) -> None:
    """Checks the result of `audit`.

    Raises:
        UserError: the audit failed; the message names the failures and their unexplained problems.
    """
    if result["ok"]:
        return
    failed = [f"{row['set']} {row['case']}" for row in result["cases"] if not row["ok"]]
    unexplained = [
        f"{item['set']} {item['case']} {item['task_id']}"
        for item in result["exceptions"]
        if not item["explanation"] and f"{item['set']} {item['case']}" in failed
    ]
    if result["misjudged"]:
        failed.append("notations")
        unexplained += [f"{row['answer']} for {row['reference']}" for row in result["misjudged"]]
    hostile = result["hostile"]
    if not hostile["ok"]:
        failed.append("hostile programs")
        unexplained += [*hostile["scored"], *hostile["infrastructure"]]
    fractions = result["fractions"]
    if not fractions["ok"]:
        failed.append("shares of tests")
        unexplained += fractions["raised"]
    judges = [row for row in result["code_judges"] if not row["ok"]]
    failed += [f"the judges of code on {row['set']}" for row in judges]
    unexplained += [name for row in judges for name in row["names"]]
    shown = ", ".join(unexplained[:_NAMED]) + (", ..." if len(unexplained) > _NAMED else "")
    raise UserError(f"audit: failed for {', '.join(failed)}{f' ({shown})' if shown else ''}")


def load_all() -> tuple[dict[str, Loaded], dict[str, str]]:
    """The available test splits, and the reasons why others are missing."""
    data, absent = {}, {}
    for name in DATA_SETS:
        try:
            data[name] = load(name)
        except UserError as error:
            absent[name] = str(error)
    return data, absent


def _chosen(loaded: Loaded, full: bool) -> list[Problem]:
    count = _FAST.get(loaded.name, _FAST["math"])
    if full or count >= len(loaded.problems):
        return list(loaded.problems)
    order = sorted(
        loaded.problems, key=lambda problem: derive_seed(stream="audit", set=loaded.name, id=problem.task_id)
    )
    return order[:count]


def _judge(name: str, problems: Sequence[Problem], texts: Sequence[str]) -> list[str]:
    if DATA_SETS[name].kind == "math":
        return list(judge_math([problem.answer for problem in problems], texts, standard="reward"))
    return [verdict.status for verdict in verify_code([problem.record for problem in problems], texts)]


def _exceptions(
    name: str, case: str, problems: Sequence[Problem], texts: Sequence[str], statuses: Sequence[str]
) -> list[dict[str, Any]]:
    """The misjudged completions."""
    return [
        {
            "set": name,
            "case": case,
            "task_id": problem.task_id,
            "status": status,
            "answer": problem.answer[:_SHOWN],
            "completion": text[-_SHOWN:],
            "explanation": EXPLANATIONS.get((name, case, problem.task_id), ""),
        }
        for problem, text, status in zip(problems, texts, statuses, strict=True)
        if (status == "passed") == (case in WRONG)
    ]


def _row(
    loaded: Loaded,
    case: str,
    statuses: Sequence[str],
    exceptions: Sequence[dict[str, Any]],
    published: float | None,
) -> dict[str, Any]:
    """The row of a case; ``ok`` if rewards (or code graders) are right, and evaluation on references."""
    passed = statuses.count("passed")
    rate = passed / len(statuses)
    if "infrastructure" in statuses:
        ok = False
    elif case in WRONG:
        ok = all(item["explanation"] for item in exceptions)
    else:
        explained = sum(bool(item["explanation"]) for item in exceptions)
        ok = case not in RIGHT or passed + explained > LEAST_RIGHT * len(statuses)
        if published is not None and case in ("reference", "answer"):
            # One may be rejected in a small set: in AIME 2024, with 30 problems, one with a leading zero.
            refused = round((1 - published) * len(statuses))
            ok &= refused <= max(1, (1 - LEAST_RIGHT) * len(statuses))
    return {
        "set": loaded.name,
        "case": case,
        "problems": len(statuses),
        "available": len(loaded.problems),
        "passed": passed,
        "rate": rate,
        "evaluation": published,
        "substitute": bool(loaded.provenance["substitute"]),
        "ok": ok,
    }


def audit_hostile() -> dict[str, Any]:
    """Runs every hostile program alongside honest ones.

    Returns:
        ``programs``, ``scored`` (names, must be empty), ``infrastructure`` (names, must be empty), ``honest``
        (number of neighbours that were misjudged, must be 0), ``statuses`` (counts), ``seconds``,
        ``limit_seconds`` (allowed for the batch) and ``ok``.
    """
    completions = [_HONEST]
    for source in HOSTILE_PROGRAMS.values():
        completions += [source, f"{_HONEST}# {len(completions)}\n"]
    start = time.monotonic()
    results = verify_code(
        [PROBLEM] * len(completions), completions, limits=_HOSTILE_LIMITS, workers=_HOSTILE_WORKERS
    )
    seconds = time.monotonic() - start
    verdicts = dict(zip(HOSTILE_PROGRAMS, results[1::2], strict=True))
    statuses = [verdict.status for verdict in verdicts.values()]
    scored = [name for name, verdict in verdicts.items() if verdict.base or verdict.plus]
    lost = [name for name, verdict in verdicts.items() if verdict.status == "infrastructure"]
    honest = sum(not verdict.passed for verdict in results[::2])
    limit = len(HOSTILE_PROGRAMS) * (_HOSTILE_LIMITS.wall_s + _HOSTILE_SLACK_S)
    return {
        "programs": len(verdicts),
        "scored": scored,
        "infrastructure": lost,
        "honest": honest,
        "statuses": {status: statuses.count(status) for status in sorted(set(statuses))},
        "seconds": round(seconds, 1),
        "limit_seconds": limit,
        "ok": not scored and not lost and not honest and seconds < limit,
    }


def audit_fractions(*, full: bool) -> dict[str, Any]:
    """Runs hostile programs where the reward is the share of tests passed, each after an honest program.

    Args:
        full: also those of `audit_hostile`, none of which may pass a single test.

    Returns:
        ``programs``, ``raised`` (names of those that got more than they earned, must be empty), ``honest``
        (number of honest programs that were misjudged, must be 0) and ``ok``.
    """
    attacks = [(name, TESTS[kind], source, EARNED) for (kind, name), source in HOSTILE_FRACTIONS.items()]
    if full:
        attacks += [(name, CALLS, source, 0.0) for name, source in HOSTILE_PROGRAMS.items()]
    records, completions = [], []
    for number, (_, record, source, _) in enumerate(attacks):
        records += [record, record]
        solution = HONEST["calls" if record["entry_point"] else "stdio"]
        completions += [fenced(f"{solution}# {number}\n"), fenced(source)]
    found = code_fractions(records, completions, limits=_HOSTILE_LIMITS)
    raised = [
        name for (name, _, _, earned), share in zip(attacks, found[1::2], strict=True) if share > earned
    ]
    honest = sum(share != 1.0 for share in found[::2])
    return {
        "programs": len(attacks),
        "raised": raised,
        "honest": honest,
        "ok": not raised and not honest,
    }


def dapo_contamination(data: Mapping[str, Loaded]) -> list[dict[str, Any]]:
    """Problems of the mathematics sets that are among the training problems of DAPO-Math.

    Args:
        data: test splits by name.

    Returns:
        Rows of `contamination`, with ``substitute`` (whether the evaluation set is a substitute) and
        ``train_substitute``.

    Raises:
        UserError: DAPO-Math has no source.
    """
    train = load("dapo", "train")
    sets = {name: loaded.problems for name, loaded in data.items() if DATA_SETS[name].kind == "math"}
    return [
        row
        | {
            "train_problems": len(train.problems),
            "substitute": bool(data[row["set"]].provenance["substitute"]),
            "train_substitute": bool(train.provenance["substitute"]),
        }
        for row in contamination(train.problems, sets)
    ]


def command(
    out: Stem,
    full: Annotated[
        bool, typer.Option("--full", help="all problems of all sets, instead of samples")
    ] = False,
    only: Annotated[
        Literal["speed", "contamination"] | None, typer.Option(help="one part of a full audit")
    ] = None,
    log: Log = None,
) -> None:
    """Audit the graders on right, wrong and hostile answers.

    Data sets come from the directory that TROLL_DATA_MIRROR names, or else from the Hugging Face hub; the
    audit names those that cannot be read. A full audit also compares the speed of the graders with evalplus
    (keep the machine otherwise idle) and lists evaluation problems among DAPO-Math's training problems.
    """
    begin(log)
    if only is None:
        result = audit(full=full)
        write_json(out.with_name(f"{out.name}.json"), result)
        write_audit(result, out)
        require_passed(result)
        return
    rows = speed() if only == "speed" else dapo_contamination(load_all()[0])
    write_json(out.with_name(f"{out.name}.json"), rows)
    frame = speed_table(rows) if only == "speed" else contamination_table(rows)
    write_table(frame, out)
    typer.echo(to_markdown(frame))


if __name__ == "__main__":
    main(lambda: typer.run(command))
