"""Comparison of verdicts for `peer.py`: the data sets, explanations of differences, and the report."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from troll.analysis.render.formats import Style, to_markdown, whole
from troll.common.files import read_json, read_jsonl

_NEAR = 1e-3  # nats; with a smaller margin between the two most likely tokens, rounding may decide


@dataclass(frozen=True)
class Set:
    """A data set: number of problems, lm-eval's task and metric, and its stop texts."""

    problems: int
    task: str = ""
    metric: str = ""
    chosen: str = ""
    stops: tuple[str, ...] = ()


SETS: Mapping[str, Set] = {
    "gsm8k": Set(
        200, "prompted_gsm8k", "exact_match", "flexible-extract", ("Question:", "</s>", "<|im_end|>")
    ),
    "math500": Set(100, "prompted_minerva_math500", "math_verify", "none", ("Problem:",)),
    "humaneval+": Set(164),
}


def compared(
    name: str, out: Path, peer: Mapping[str, Mapping[str, Any]], margins: "Margins"
) -> list[dict[str, Any]]:
    """Returns a row per problem: three verdicts, whether the texts are equal, and why verdicts differ."""
    grades = read_json(out / "grades.json")
    graded, listed = grades["problems"], {row["task_id"]: row for row in grades["disagreements"]}
    prompts = {str(row["task_id"]): row["prompt"] for row in read_jsonl(out / "asked.jsonl")}
    texts = {str(row["task_id"]): row["completion"] for row in read_jsonl(out / "written.jsonl")}
    rows = []
    for task_id, verdict in graded.items():
        theirs, text = peer[task_id], texts[task_id]
        ours_cut, peer_cut = _comparable(name, prompts[task_id], text, theirs["text"])
        row = {
            "set": name,
            "task_id": task_id,
            "ours": verdict["passed"][0],
            "official": verdict["official"][0],
            "peer": theirs["passed"],
            "same_text": ours_cut == peer_cut,
            "explanation": "",
        }
        if len({row["ours"], row["official"], row["peer"]}) > 1:
            whys = []
            if not row["same_text"]:
                whys.append(margins.explain(name, prompts[task_id], ours_cut, peer_cut))
            if row["ours"] != row["official"] or row["same_text"]:
                again = listed.get(task_id, {}).get("evalplus_on_our_program", {}).get("passed")
                whys.append(_judges(name, text, row, verdict["status"][0], theirs["taken"], again))
            row["explanation"] = "; ".join(whys)
        rows.append(row)
    return rows


def _comparable(name: str, prompt: str, text: str, other: str) -> tuple[str, str]:
    """Returns both texts, truncated at the peer's stop texts."""
    if SETS[name].task:
        stops = SETS[name].stops
        return _cut(text, stops), _cut(other, stops)
    from evalplus.provider.utility import EOS, extra_eos_for_direct_completion

    bare = other.startswith(prompt)  # evalplus then includes the prompt in the answer
    stops = (*EOS, *(extra_eos_for_direct_completion("humaneval") if bare else ["\n```\n"]))
    return _cut(text, stops).replace("\t", "    "), other.removeprefix(prompt)


def _cut(text: str, stops: Sequence[str]) -> str:
    return min((text.split(stop)[0] for stop in stops), key=len)


def _judges(name: str, text: str, row: Mapping[str, Any], status: str, taken: str, again: bool | None) -> str:
    """Explains why two judges disagree about a text; ``again`` is what evalplus says of our program."""
    if row["official"] != row["peer"] and row["same_text"]:
        scorer = "lm-eval" if SETS[name].task else "evalplus"
        return f"{scorer} gives two verdicts on the same text: {UNEXPLAINED}"
    if not SETS[name].task:
        if again == row["ours"]:
            return (
                f"evalplus takes {_short(taken)} from the text, without the prompt's imports if it is a chat "
                "answer; on the program that our judge takes, evalplus agrees with our judge"
            )
        return f"evalplus and our judge disagree about the same program (ours: {status}): {UNEXPLAINED}"
    from troll.tasks.verifiers.math import last_boxed

    box = last_boxed(text)
    read = (
        "there is no box, which our judge requires"
        if box is None
        else f"our judge reads the box {_short(box)}"
    )
    if SETS[name].chosen == "none":
        return f"{read}; math-verify looks for an answer anywhere in the text"
    return f"{read}; lm-eval takes the last number, {_short(taken)}"


UNEXPLAINED = "unexplained"


def _short(text: str, most: int = 60) -> str:
    line = " ".join(text.split())
    return f"`{line[:most]}{'…' if len(line) > most else ''}`"


class Margins:
    """Explains where two greedy texts of a model diverge, by the margin between the most likely tokens."""

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        self._model: Any = None

    def explain(self, name: str, prompt: str, text: str, other: str) -> str:
        """Returns an explanation; it contains `UNEXPLAINED` if the tokens were not almost equally likely."""
        same = len(os.path.commonprefix([text, other]))  # noqa: RUF071 - of characters
        if same in (len(text), len(other)):
            return f"one text is a prefix of the other: {UNEXPLAINED}"
        margin = self._margin(prompt, text, same, "auto" if SETS[name].task else "off")
        where = f"the texts diverge at character {same}"
        why = f"{where}, where the two most likely tokens are {margin:.1g} nats apart"
        return why if margin < _NEAR else f"{why}: {UNEXPLAINED}"

    def _margin(self, prompt: str, text: str, same: int, chat: str) -> float:
        """Returns the smallest margin of the two likeliest tokens, at the divergence or one token before."""
        import torch
        from transformers import AutoModelForCausalLM

        from troll.tasks.prompts import encode

        tokenizer = model_tokenizer(self._checkpoint)
        if self._model is None:
            self._model = AutoModelForCausalLM.from_pretrained(self._checkpoint, dtype=torch.float32).eval()
        before = encode(tokenizer, [prompt], chat)[0]
        written = tokenizer(text, add_special_tokens=False).input_ids
        place = next(
            (k for k in range(len(written)) if len(tokenizer.decode(written[: k + 1])) > same),
            len(written) - 1,
        )
        with torch.no_grad():
            logits = self._model(torch.tensor([before + written[: place + 1]])).logits[0]
        steps = range(max(0, place - 1), place + 1)
        top = [logits[len(before) + k - 1].float().topk(2).values for k in steps]
        return min(float(values[0] - values[1]) for values in top)


def model_tokenizer(checkpoint: Path) -> Any:
    """Loads the tokenizer of a checkpoint."""
    from troll.common.tokenizers import saved_tokenizer

    return saved_tokenizer(checkpoint)


def report(frame: pd.DataFrame, about: Mapping[str, str], commands: Sequence[str]) -> str:
    """Makes OUT.md: counts by set, every difference with its explanation, and the commands."""
    frame = frame.assign(equal=frame["explanation"] == "")
    unexplained = frame["explanation"].str.contains(UNEXPLAINED)
    frame = frame.assign(explained=~frame["equal"] & ~unexplained, unexplained=unexplained, problems=True)
    counts = frame.groupby("set", sort=False)[list(_COUNTED)].sum().reset_index()
    counts.attrs["styles"] = {name: Style(text, whole) for name, text in _COUNTED.items()}
    counts.attrs["headings"] = {"set": "Set"}
    different = frame.loc[~frame["equal"], [*_HEADINGS, "explanation"]]
    verdicts = {name: different[name].map({True: "yes", False: "no"}) for name in _VERDICTS}
    different = different.assign(**verdicts, task_id=different["task_id"].astype(str))
    different.attrs["headings"] = _HEADINGS | {"explanation": "Why"}
    different.attrs["notes"] = [] if len(different) else ["None: all three verdicts agree on every problem."]
    parts = [
        "# Comparison with lm-eval and evalplus",
        f"Model: {about['model']} ({about['digest']}), greedy, float32. {about['versions']}.",
    ]
    parts += [to_markdown(counts).strip(), *_HOW, "## Differences", to_markdown(different).strip()]
    parts += ["## Commands", _WHERE, "\n".join(["```bash", *dict.fromkeys(commands), "```"])]
    return "\n\n".join(parts) + "\n"


_VERDICTS = ("ours", "official", "peer", "same_text")
_COUNTED = {
    "problems": "Problems",
    "ours": "Right by our judge",
    "official": "by the official scorer, on our answers",
    "peer": "by the peer, on its answers",
    "equal": "Equal verdicts",
    "same_text": "Equal texts",
    "explained": "Differences, explained",
    "unexplained": "unexplained",
}
_HEADINGS = {
    "set": "Set",
    "task_id": "Problem",
    "ours": "Ours",
    "official": "Official",
    "peer": "Peer",
    "same_text": "Equal texts",
}
_HOW = (
    "Official scorer on our answers: lm-eval's task, or evalplus' evaluator, on the samples of this package, "
    "as in `troll grade`. Peer: `lm_eval run --model hf`, or `evalplus.codegen` and `evalplus.evaluate`, "
    "which load the model, generate answers and judge them independently. evalplus gets the problems with "
    "long prompts first: in another order its decoder stops within the prompt of the next problem.",
    "In 200 tokens of greedy text, rounding sometimes decides between two tokens that are almost equally "
    f"likely. It counts as the explanation of a difference if they are less than {_NEAR:g} nats apart.",
)


_WHERE = (
    "`python workflow/benchmarks/peer.py` runs these in its work directory: `model` is the checkpoint, "
    "`problems.jsonl` and `evalplus.jsonl` are the first problems of the set, `asked.jsonl` has the prompts "
    "that both sides use. evalplus generates for a few problems per process, because each one makes the next "
    "slower, and judges in bubblewrap."
)
