"""The audit of the graders as tables: what they accept of each data set, and what lies behind exceptions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from troll.analysis.formats import Style, percent, to_markdown, whole, write_table
from troll.analysis.report import Section, table_section, write_page
from troll.analysis.stand_ins import MARK, marked, stand_in_note
from troll.files import write_text

_CASES = ("reference", "answer", "paraphrase", "wrong", "unboxed")
_MARKED = f"{MARK} stands in for the data set that the paper used."


def audit_tables(result: Mapping[str, Any]) -> list[tuple[str, pd.DataFrame]]:
    """The tables of an audit, with their titles: the verdicts, and what else is not empty.

    Args:
        result: of `troll.evaluation.audit.audit`.
    """
    tables = [
        ("What the graders accept", cases_table(result)),
        ("Hostile programs", hostile_table(result["hostile"])),
        ("Three judges of mathematics", judges_table(result["graders"], result["data"])),
        ("Evaluation problems in DAPO-Math", contamination_table(result["contamination"])),
        ("Speed of the graders", speed_table(result["speed"])),
        ("Exceptions", exceptions_table(result["exceptions"], result["data"])),
    ]
    return [tables[0], *((title, frame) for title, frame in tables[1:] if len(frame))]


def write_audit(result: Mapping[str, Any], out: Path) -> None:
    """Writes an audit: all of it as ``<out>.md`` and ``.html``, the verdicts as ``<out>.csv`` and ``.tex``.

    Args:
        result: of `troll.evaluation.audit.audit`.
        out: path without suffix.
    """
    tables = audit_tables(result)
    write_table(tables[0][1], out)
    parts = [f"# {title_of(result)}", *(f"## {title}\n\n{to_markdown(frame)}" for title, frame in tables)]
    write_text(out.with_name(f"{out.name}.md"), "\n\n".join(part.strip() for part in parts) + "\n")
    write_page(out.with_name(f"{out.name}.html"), title_of(result), audit_sections(result))


def title_of(result: Mapping[str, Any]) -> str:
    """The heading of an audit, with its verdict."""
    return f"Audit of the graders ({result['mode']}): {'passed' if result['ok'] else 'FAILED'}"


def audit_sections(result: Mapping[str, Any]) -> list[Section]:
    """The tables as parts of a page."""
    return [table_section(title, frame) for title, frame in audit_tables(result)]


def cases_table(result: Mapping[str, Any]) -> pd.DataFrame:
    """A row per data set: the share of each kind of completion that the graders accept, and the verdict."""
    exceptions = pd.DataFrame(result["exceptions"], columns=["set", "case", "explanation"])
    rows = []
    for name in dict.fromkeys(row["set"] for row in result["cases"]):
        cases = {row["case"]: row for row in result["cases"] if row["set"] == name}
        first = next(iter(cases.values()))
        explained = exceptions.loc[exceptions["set"] == name, "explanation"].astype(bool)
        rows.append(
            {
                "set": marked(name, first["stand_in"]),
                "problems": first["problems"],
                "available": first["available"],
                **{case: cases[case]["rate"] if case in cases else float("nan") for case in _CASES},
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
        "wrong": Style("Wrong (%)", percent),
        "unboxed": Style("Right, no box (%)", percent),
        "explained": Style("Exceptions, explained", whole),
        "unexplained": Style("unexplained", whole),
        "seconds": Style("Time (s)", whole),
        "verdict": Style("Verdict"),
        "data": Style("Data"),
        "sha256": Style("SHA-256"),
    }
    stand_ins = {
        name: str(data.get("note", "")) for name, data in result["data"].items() if data.get("stand_in")
    }
    absent = "; ".join(f"{name} ({_first_reason(why)})" for name, why in result["absent"].items())
    frame.attrs["notes"] = [
        "Shares that the graders of rewards and evaluation accept. Reference solutions and answers must "
        "pass in more than 99 % of the problems, explained exceptions apart; wrong answers, and right ones "
        "without the box that the convention asks for, never. Paraphrases are reported and decide nothing.",
        f"{result['mode'].capitalize()} audit, Python {result['python']}, {result['seconds']:.0f} s in all.",
        *stand_in_note(stand_ins),
        *([f"Not here: {absent}."] if absent else []),
    ]
    return frame


def _first_reason(text: str) -> str:
    """An error without the name of the data set and the advice that follows."""
    return text.split(": ", 1)[-1].split("; ")[0].split(" (")[0]


def hostile_table(hostile: Mapping[str, Any]) -> pd.DataFrame:
    """One row: how the corpus of hostile programs ended."""
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


def judges_table(rows: Sequence[Mapping[str, Any]], data: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """How three ways of judging mathematics differ, by data set and kind of completion."""
    split = [dict(row, set=row["set"].partition(": ")[0], case=row["set"].partition(": ")[2]) for row in rows]
    found = [dict(row, set=marked(row["set"], _stands_in(data, row["set"]))) for row in split]
    first = ["set", "case"]
    names = [*first, *(name for name in (found[0] if found else {}) if name not in first)]
    frame = pd.DataFrame(found, columns=names)
    frame.attrs["styles"] = {
        "set": Style("Data set"),
        "case": Style("Completions"),
        "completions": Style("Number", whole),
        "exact": Style("Same text in the box (%)", percent),
        "boxed": Style("math-verify on the box (%)", percent),
        "math_verify": Style("math-verify on all (%)", percent),
        "boxed_not_exact": Style("box, not text", whole),
        "exact_not_boxed": Style("text, not box", whole),
        "math_verify_not_boxed": Style("all, not box", whole),
        "boxed_not_math_verify": Style("box, not all", whole),
    }
    frame.attrs["notes"] = [
        "math-verify on the last box is what counts for rewards and evaluation. The last four columns count "
        "completions that one judge accepts and the other does not.",
        *([_MARKED] if any(_stands_in(data, row["set"]) for row in split) else []),
    ]
    return frame


def contamination_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Evaluation problems that the training split of DAPO-Math holds, by evaluation set."""
    names = ["set", "problems", "exact", "near", "share"]
    found = [
        {
            "set": marked(row["set"], row["stand_in"]),
            **{name: row[name] for name in ("problems", "exact", "near")},
            "share": (row["exact"] + row["near"]) / row["problems"],
        }
        for row in rows
    ]
    frame = pd.DataFrame(found, columns=names)
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
    train = marked("DAPO-Math", first["train_stand_in"])
    frame.attrs["notes"] = [
        f"Against the {first['train_problems']} training problems of {train}. Same text: the same words, "
        "numbers and operators, whatever the typesetting. Nearly the same: at least 80 % of its runs of "
        "eight words are in one training problem.",
        *([_MARKED] if first["train_stand_in"] or any(row["stand_in"] for row in rows) else []),
    ]
    return frame


def speed_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """How fast the graders are, beside evalplus and the goals."""
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
    """What was judged otherwise than it should be, and why."""
    names = ["set", "case", "task_id", "judged", "answer", "explanation"]
    found = [
        {
            **{name: str(row[name]) for name in names if name != "judged"},
            "judged": row["status"],
            "set": marked(row["set"], _stands_in(data, row["set"])),
            "explanation": row["explanation"] or "not explained",
        }
        for row in rows
    ]
    frame = pd.DataFrame(found, columns=names)
    headings = ("Data set", "Completion", "Problem", "Judged", "Reference answer", "Cause")
    frame.attrs["styles"] = {name: Style(heading) for name, heading in zip(names, headings, strict=True)}
    if any(_stands_in(data, row["set"]) for row in rows):
        frame.attrs["notes"] = [_MARKED]
    return frame


def _stands_in(data: Mapping[str, Mapping[str, Any]], name: str) -> bool:
    return bool(data.get(name, {}).get("stand_in"))
