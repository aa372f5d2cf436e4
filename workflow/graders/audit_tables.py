"""Tables of the audit of the graders: acceptance by data set, and explanations of exceptions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from troll.analysis.render.formats import Style, percent, to_markdown, whole, write_table
from troll.analysis.render.substitutes import MARK, marked, substitute_note
from troll.common.files import write_text

_CASES = ("reference", "answer", "paraphrase", "wrong", "tiny", "unboxed")
_PUBLISHED = ("paraphrase", "wrong", "tiny")  # where evaluation differs from rewards
_STANDARDS = (
    "Rewards compare exact values of whole answers, so that a policy is not paid for what a parser passes "
    "over. Evaluation compares by math-verify as published, as others' figures do; only references in "
    "scientific notation, which it misreads, get the standard of rewards."
)
_SHAPES = (
    "Shapes of answers hold one right function each, as base and chat models write it; here evalplus' own "
    "sanitizer looks for the function, with the prompt before the answer or without, whichever finds it."
)
_MARKED = f"{MARK} stands in for the data set that the paper used."


def audit_tables(result: Mapping[str, Any]) -> list[tuple[str, pd.DataFrame]]:
    """The tables of an audit with their titles, the verdicts first."""
    tables = [
        ("What the graders accept", cases_table(result)),
        ("Hostile programs", hostile_table(result["hostile"])),
        ("Two judges of code", code_judges_table(result.get("code_judges", []))),
        ("Four judges of mathematics", judges_table(result["graders"], result["data"])),
        ("Notations, pairs written by hand", notations_table(result["pairs"])),
        ("Notations, answers of the data sets", notations_table(result["forms"])),
        ("What math-verify as published misjudges", differences_table(result["differences"])),
        ("Evaluation problems in DAPO-Math", contamination_table(result["contamination"])),
        ("Speed of the graders", speed_table(result["speed"])),
        ("Exceptions", exceptions_table(result["exceptions"], result["data"])),
    ]
    return [tables[0], *((title, frame) for title, frame in tables[1:] if len(frame))]


def write_audit(result: Mapping[str, Any], out: Path) -> None:
    """Writes an audit: all tables as ``.md``, the verdicts as ``.csv``."""
    tables = audit_tables(result)
    write_table(tables[0][1], out)
    title = f"Audit of the graders ({result['mode']}): {'passed' if result['ok'] else 'FAILED'}"
    parts = [f"# {title}", *(f"## {title}\n\n{to_markdown(frame)}" for title, frame in tables)]
    write_text(out.with_name(f"{out.name}.md"), "\n\n".join(part.strip() for part in parts) + "\n")


def cases_table(result: Mapping[str, Any]) -> pd.DataFrame:
    """A row per data set: the acceptance rate of each kind of completion, and the verdict."""
    exceptions = pd.DataFrame(result["exceptions"], columns=["set", "case", "explanation"])
    rows = []
    for name in dict.fromkeys(row["set"] for row in result["cases"]):
        cases = {row["case"]: row for row in result["cases"] if row["set"] == name}
        first = next(iter(cases.values()))
        explained = exceptions.loc[exceptions["set"] == name, "explanation"].astype(bool)
        rows.append(
            {
                "set": marked(name, first["substitute"]),
                "problems": first["problems"],
                "available": first["available"],
                **{case: cases[case]["rate"] if case in cases else float("nan") for case in _CASES},
                **{
                    f"evaluation_{case}": cases[case].get("evaluation") if case in cases else None
                    for case in _PUBLISHED
                },
                "explained": int(explained.sum()),
                "unexplained": int((~explained).sum()),
                "seconds": sum(row["seconds"] for row in cases.values()),
                "verdict": "passed" if all(row["ok"] for row in cases.values()) else "FAILED",
                "data": str(result["data"][name].get("source", "")),
                "sha256": str(result["data"][name].get("sha256", ""))[:12],
            }
        )
    frame = pd.DataFrame(rows, columns=list(rows[0]) if rows else ["set", "problems", *_CASES, "verdict"])
    frame.attrs["styles"] = {
        "set": Style("Data set"),
        "problems": Style("Problems", whole),
        "available": Style("of", whole),
        "reference": Style("Reference solution (%)", percent),
        "answer": Style("Reference answer (%)", percent),
        "paraphrase": Style("In other words (%)", percent),
        "wrong": Style("Near misses (%)", percent),
        "tiny": Style("Tiny constant (%)", percent),
        "evaluation_paraphrase": Style("Evaluation: in other words (%)", percent),
        "evaluation_wrong": Style("near misses (%)", percent),
        "evaluation_tiny": Style("tiny constant (%)", percent),
        "unboxed": Style("Right, no box (%)", percent),
        "explained": Style("Exceptions, explained", whole),
        "unexplained": Style("unexplained", whole),
        "seconds": Style("Time (s)", whole),
        "verdict": Style("Verdict"),
        "data": Style("Data"),
        "sha256": Style("SHA-256"),
    }
    substitutes = {
        name: str(data.get("note", "")) for name, data in result["data"].items() if data.get("substitute")
    }
    absent = "; ".join(f"{name} ({_first_reason(why)})" for name, why in result["absent"].items())
    frame.attrs["notes"] = [
        "Shares that rewards (of programs: the one grader) accept; the columns after them are of evaluation. "
        "Reference solutions, answers and paraphrases must pass in more than 99 % of the problems, explained "
        "exceptions apart; wrong answers, and right ones without the box that is asked for, never. Near "
        "misses are wrong values written so that a lenient parser takes them for the reference (of 12: "
        "13 = 12, 12², 12.5, 12 %); of programs, functions that always return the same.",
        _STANDARDS,
        f"{result['mode'].capitalize()} audit, Python {result['python']}, {result['seconds']:.0f} s in all.",
        *substitute_note(substitutes),
        *([f"Not here: {absent}."] if absent else []),
    ]
    return frame


def _first_reason(text: str) -> str:
    """An error message without the name of the data set and the advice."""
    return text.split(": ", 1)[-1].split("; ")[0].split(" (")[0]


def hostile_table(hostile: Mapping[str, Any]) -> pd.DataFrame:
    """One row: the outcomes of the corpus of hostile programs."""
    row = {
        "programs": hostile["programs"],
        "scored": len(hostile["scored"]),
        "lost": len(hostile["infrastructure"]),
        "honest": hostile["honest"],
        **{f"ended {status}": count for status, count in hostile["statuses"].items()},
        "seconds": hostile["seconds"],
        "verdict": "passed" if hostile["ok"] else "FAILED",
    }
    frame = pd.DataFrame([row])
    frame.attrs["styles"] = {
        "programs": Style("Programs", whole),
        "scored": Style("Scored", whole),
        "lost": Style("Broke the sandbox", whole),
        "honest": Style("Honest neighbours misjudged", whole),
        **{f"ended {status}": Style(status.capitalize(), whole) for status in hostile["statuses"]},
        "seconds": Style("Time (s)"),
        "verdict": Style("Verdict"),
    }
    names = [*hostile["scored"], *hostile["infrastructure"]]
    frame.attrs["notes"] = [f"Behind the verdict: {', '.join(names)}."] if names else []
    return frame


def code_judges_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Differences between our judge of code and evalplus' on the same programs."""
    names = ["set", "programs", "both", "troll", "evalplus", "neither", "verdict"]
    entries = [{**row, "verdict": "passed" if row["ok"] else "FAILED"} for row in rows]
    frame = pd.DataFrame(entries, columns=names)
    frame.attrs["styles"] = {
        "set": Style("Programs"),
        "programs": Style("Number", whole),
        "both": Style("Accepted by both", whole),
        "troll": Style("by ours only", whole),
        "evalplus": Style("by evalplus only", whole),
        "neither": Style("by neither", whole),
        "verdict": Style("Verdict"),
    }
    behind = [name for row in rows for name in row["names"]]
    shapes = any(row["set"] == "shapes of answers" for row in rows)
    frame.attrs["notes"] = [
        "evalplus' own evaluator runs in the sandbox too, but beside the expected outputs: it accepts the "
        "hostile programs that cheat it. Nothing honest that it accepts may be refused.",
        *([_SHAPES] if shapes else []),
        *([f"Behind the verdict: {', '.join(behind)}."] if behind else []),
    ]
    return frame


def judges_table(rows: Sequence[Mapping[str, Any]], data: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Differences between four judges of mathematics, by data set and kind of completion."""
    split = [dict(row, set=row["set"].partition(": ")[0], case=row["set"].partition(": ")[2]) for row in rows]
    entries = [dict(row, set=marked(row["set"], _stands_in(data, row["set"]))) for row in split]
    first = ["set", "case"]
    names = [*first, *(name for name in (entries[0] if entries else {}) if name not in first)]
    frame = pd.DataFrame(entries, columns=names)
    frame.attrs["styles"] = {
        "set": Style("Data set"),
        "case": Style("Completions"),
        "completions": Style("Number", whole),
        "exact": Style("Same text in the box (%)", percent),
        "reward": Style("Rewards (%)", percent),
        "boxed": Style("Evaluation (%)", percent),
        "math_verify": Style("math-verify on all (%)", percent),
        "boxed_not_exact": Style("evaluation, not text", whole),
        "exact_not_boxed": Style("text, not evaluation", whole),
        "reward_not_boxed": Style("rewards, not evaluation", whole),
        "boxed_not_reward": Style("evaluation, not rewards", whole),
        "math_verify_not_boxed": Style("all, not evaluation", whole),
        "boxed_not_math_verify": Style("evaluation, not all", whole),
    }
    frame.attrs["notes"] = [
        "Evaluation is math-verify on the last box, all is math-verify on the whole completion. The last six "
        "columns count completions that one judge accepts and the other does not.",
        *([_MARKED] if any(_stands_in(data, row["set"]) for row in split) else []),
    ]
    return frame


def notations_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """A row per notation: how many right and wrong answers rewards and evaluation accept."""
    names = [f"{kind}{judge}" for kind in ("right", "wrong") for judge in ("", "_reward", "_evaluation")]
    frame = pd.DataFrame(rows, columns=["notation", *names])
    frame.attrs["styles"] = {
        "notation": Style("Notation"),
        "right": Style("Right answers", whole),
        "right_reward": Style("accepted by rewards", whole),
        "right_evaluation": Style("by evaluation", whole),
        "wrong": Style("Wrong answers", whole),
        "wrong_reward": Style("accepted by rewards", whole),
        "wrong_evaluation": Style("by evaluation", whole),
    }
    frame.attrs["notes"] = ["The answers are made apart from the code that judges them. " + _STANDARDS]
    return frame


def differences_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Hand-written pairs that evaluation misjudges and rewards judge correctly."""
    names = ["notation", "reference", "answer", "right"]
    entries = [
        {**{name: str(row[name]) for name in names[:3]}, "right": "right" if row["right"] else "wrong"}
        for row in rows
    ]
    frame = pd.DataFrame(entries, columns=names)
    headings = ("Notation", "Reference answer", "Answer", "It is")
    frame.attrs["styles"] = {name: Style(heading) for name, heading in zip(names, headings, strict=True)}
    if rows:
        frame.attrs["notes"] = ["Evaluation takes what is right for wrong, or what is wrong for right."]
    return frame


def contamination_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Evaluation problems in the training split of DAPO-Math, by evaluation set."""
    names = ["set", "problems", "exact", "near", "share"]
    entries = [
        {
            "set": marked(row["set"], row["substitute"]),
            **{name: row[name] for name in ("problems", "exact", "near")},
            "share": (row["exact"] + row["near"]) / row["problems"],
        }
        for row in rows
    ]
    frame = pd.DataFrame(entries, columns=names)
    frame.attrs["styles"] = {
        "set": Style("Evaluation set"),
        "problems": Style("Problems", whole),
        "exact": Style("In training, same text", whole),
        "near": Style("nearly the same", whole),
        "share": Style("Share (%)", percent),
    }
    if not rows:
        return frame
    first = rows[0]
    train = marked("DAPO-Math", first["train_substitute"])
    frame.attrs["notes"] = [
        f"Against the {first['train_problems']} training problems of {train}. Same text: the same words, "
        "numbers and operators, whatever the typesetting. Nearly the same: at least 80 % of its runs of "
        "eight words are in one training problem.",
        *([_MARKED] if first["train_substitute"] or any(row["substitute"] for row in rows) else []),
    ]
    return frame


def speed_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Speed of the graders, compared with evalplus and the goals."""
    frame = pd.DataFrame(rows, columns=list(rows[0]) if rows else ["what"])
    frame.attrs["styles"] = {
        "what": Style("What"),
        "count": Style("Number", whole),
        "passed": Style("Right", whole),
        "seconds": Style("Time (s)"),
        "per_second": Style("per second"),
        "goal": Style("Goal"),
        "met": Style("Met"),
        "cores": Style("Cores", whole),
        "load": Style("Load before"),
    }
    if rows:
        frame.attrs["notes"] = [
            "Wall time, one after the other on one machine. Load: processes that wanted a core just "
            "before; above the number of cores the seconds say little."
        ]
    return frame


def exceptions_table(
    rows: Sequence[Mapping[str, Any]], data: Mapping[str, Mapping[str, Any]]
) -> pd.DataFrame:
    """Misjudged completions and their causes."""
    names = ["set", "case", "task_id", "judged", "answer", "explanation"]
    entries = [
        {
            **{name: str(row[name]) for name in names if name != "judged"},
            "judged": row["status"],
            "set": marked(row["set"], _stands_in(data, row["set"])),
            "explanation": row["explanation"] or "not explained",
        }
        for row in rows
    ]
    frame = pd.DataFrame(entries, columns=names)
    headings = ("Data set", "Completion", "Problem", "Judged", "Reference answer", "Cause")
    frame.attrs["styles"] = {name: Style(heading) for name, heading in zip(names, headings, strict=True)}
    if any(_stands_in(data, row["set"]) for row in rows):
        frame.attrs["notes"] = [_MARKED]
    return frame


def _stands_in(data: Mapping[str, Mapping[str, Any]], name: str) -> bool:
    return bool(data.get(name, {}).get("substitute"))
