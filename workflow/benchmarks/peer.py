"""Compares greedy evaluation of a checkpoint by this package with lm-eval's and evalplus' own commands.

    python workflow/benchmarks/peer.py --checkpoint DIR --out results/released/graders/peer

The peer loads the checkpoint, generates answers and judges them without any code of this package: `lm_eval
run --model hf` with lm-eval's task and metric, `evalplus.codegen` and `evalplus.evaluate`. Both sides use the
same prompts, in the model's chat template if it has one: this package's for mathematics, evalplus' for
programs. For each problem, OUT.csv has three verdicts: of our judge and of the official scorer on our
answers, and of the peer on its answers. OUT.md counts them and explains each difference. If TROLL_DATA_MIRROR
names the data, nothing is downloaded. Generated programs only run in bubblewrap. Completed steps are kept in
--work, so that the same command resumes after an interruption.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]  # the package need not be installed

from peer_differences import SETS, Margins, compared, model_tokenizer, report  # noqa: E402
from troll.common.digests import sha256_of_file  # noqa: E402
from troll.common.errors import UserError  # noqa: E402
from troll.common.files import read_json, read_jsonl, write_json, write_jsonl, write_text  # noqa: E402

_BIN = Path(sys.executable).parent
MODEL = "model"  # a link to the checkpoint in the work directory
_CODE_TOKENS = 768  # evalplus' limit, which its command line cannot change
_EXPECTED_BYTES = 4 * 2**30
# evalplus' decoder wraps the model again for each problem, and copies the tokenizer for every layer: the time
# of n problems in one process grows with n^3.
_PER_PROCESS = 6
_TIMEOUT_S = 4 * 3600


class Steps:
    """Runs each command once in the work directory, and records it as one would type it."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.commands: list[str] = []

    def run(
        self,
        made: str,
        command: Sequence[str],
        *,
        lines: int = 0,
        to: Path | None = None,
        shown: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Path:
        """Runs a command that makes a file, unless the file exists.

        Args:
            made: pattern of the file in the work directory.
            command: the command and its arguments.
            lines: least number of lines of the complete file, for commands that resume after an interruption.
            to: file for the standard output, by default the log.
            shown: the command as one would type it; by default the command itself.
            environment: variables to set.

        Returns:
            The file.
        """
        words = [Path(word).name if word.startswith(str(_BIN)) else word for word in command]
        named = [f"{name}={shlex.quote(value)}" for name, value in (environment or {}).items()]
        self.commands.append(" ".join([*named, shlex.join(shown or words)]))
        if (path := self._complete(made, lines)) is not None:
            return path
        progress = self.commands[-1] if to else shlex.join(words)
        print(f"peer: {progress}", file=sys.stderr, flush=True)
        log = self.work / "log.txt"
        variables = {**os.environ, "TOKENIZERS_PARALLELISM": "false", **(environment or {})}
        if mirror := variables.get("TROLL_DATA_MIRROR"):
            variables |= {"TROLL_DATA_MIRROR": str(Path(mirror).resolve()), "HF_HUB_OFFLINE": "1"}
        with log.open("ab") as errors, to.open("wb") if to else log.open("ab") as output:
            ran = subprocess.run(
                command,
                stdout=output,
                stderr=errors,
                env=variables,
                cwd=self.work,
                timeout=_TIMEOUT_S,
                check=False,
            )
        path = self._complete(made, lines)
        if ran.returncode or path is None:
            if to is not None:
                to.unlink(missing_ok=True)
            raise UserError(
                f"peer: {words[0]} ended with status {ran.returncode} without a complete {made}; see {log}"
            )
        return path

    def _complete(self, pattern: str, lines: int) -> Path | None:
        paths = sorted(self.work.glob(pattern))
        complete = [path for path in paths if not lines or len(path.read_bytes().splitlines()) >= lines]
        return complete[-1] if complete else None


def ours(steps: Steps, name: str, options: argparse.Namespace) -> tuple[Path, int]:
    """Samples and grades by this package; returns the directory and the number of problems."""
    from troll.tasks.datasets.load import load

    out, code = steps.work / name, not SETS[name].task
    rows = [problem.as_row() for problem in load(name).problems[: options.limits[name]]]
    asked = rows
    if code:
        asked = [{**row, "prompt": as_evalplus_asks(row["prompt"], steps, options)} for row in rows]
        write_jsonl(out / "evalplus.jsonl", longest_first(rows, asked, model_tokenizer(steps.work / MODEL)))
    write_jsonl(out / "problems.jsonl", rows)
    write_jsonl(out / "asked.jsonl", asked)
    troll, tokens = str(_BIN / "troll"), _CODE_TOKENS if code else options.max_tokens
    how = {"samples": 1, "temperature": 0, "max_tokens": tokens, "batch_size": options.batch_size}
    write_json(out / "sampling.json", {**how, "cut_prompts": True, "chat": "off" if code else "auto"})
    command = [troll, "job", "sample", "--config", f"{name}/sampling.json", "--task", name]
    command += ["--checkpoint", MODEL, "--problems", f"{name}/asked.jsonl", "--out", f"{name}/written.jsonl"]
    written = read_jsonl(steps.run(f"{name}/written.jsonl", command, lines=len(rows)))
    # evalplus prefills the answer of a chat model with the opening fence, which is part of the answer.
    begun = _FENCE if code and _in_chat(steps, options) else ""
    write_jsonl(out / "samples.jsonl", ({**row, "completion": begun + row["completion"]} for row in written))
    command = [troll, "grade", "--task", name, "--problems", f"{name}/problems.jsonl"]
    command += ["--samples", f"{name}/samples.jsonl", "--out", f"{name}/grades.json"]
    steps.run(f"{name}/grades.json", command)
    return out, len(rows)


def as_evalplus_asks(prompt: str, steps: Steps, options: argparse.Namespace) -> str:
    """Returns the exact prompt of evalplus' decoder, with or without the chat template."""
    from evalplus.provider.utility import make_raw_chat_prompt

    prompt = prompt.strip() + "\n"
    if not _in_chat(steps, options):
        return prompt
    return str(make_raw_chat_prompt(prompt, _INSTRUCTION, _RESPONSE, model_tokenizer(steps.work / MODEL)))


def longest_first(
    rows: Sequence[Mapping[str, Any]], asked: Sequence[Mapping[str, Any]], tokenizer: Any
) -> list[Mapping[str, Any]]:
    """Sorts problems by descending length of the prompt, which avoids a bug in evalplus' decoder.

    The decoder searches for stop texts from the end of the prompt, but keeps searching from the ends of
    earlier, shorter prompts; a longer prompt contains such texts there, which ends the answer after one
    token.
    """
    lengths = [len(tokenizer(row["prompt"]).input_ids) for row in asked]
    return [row for _, row in sorted(zip(lengths, rows, strict=True), key=lambda item: -item[0])]


def _in_chat(steps: Steps, options: argparse.Namespace) -> bool:
    from troll.tasks.prompts import wants_chat

    return not options.bare and wants_chat(model_tokenizer(steps.work / MODEL), "auto")


# Copied from evalplus.codegen.run_codegen, which does not export them.
_INSTRUCTION = (
    "Please provide a self-contained Python script that solves the following problem in a markdown code "
    "block:"
)
_RESPONSE = (
    "Below is a Python script with a self-contained function that solves the problem and passes "
    "corresponding tests:"
)
_FENCE = "```python\n"


def by_lm_eval(
    steps: Steps, name: str, number: int, options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Returns results of lm-eval's command by task_id: text, extracted answer, and verdict."""
    from troll.tasks.prompts import wants_chat

    item = SETS[name]
    steps.run(
        f"tasks/{item.task}.yaml",
        [str(_BIN / "troll"), "job", "lm-eval-tasks", "--out", "tasks"],
    )
    chat = wants_chat(model_tokenizer(steps.work / MODEL), "auto")
    model = f"pretrained={MODEL},dtype=float32" + (",enable_thinking=False" if chat else "")
    command = [str(_BIN / "lm_eval"), "run", "--model", "hf", "--model_args", model, "--tasks", item.task]
    command += ["--include_path", "tasks", "--limit", str(number), "--log_samples"]
    command += ["--batch_size", str(options.batch_size), *(["--apply_chat_template"] if chat else [])]
    command += ["--gen_kwargs", f"do_sample=False,temperature=0,max_gen_toks={options.max_tokens}"]
    command += ["--output_path", f"{name}/peer"]
    rows = read_jsonl(steps.run(f"{name}/peer/*/samples_*.jsonl", command))
    return {
        str(row["doc"]["task_id"]): {
            "text": row["resps"][0][0],
            "taken": str(row["filtered_resps"][0]),
            "passed": row[item.metric] == 1.0,
        }
        for row in rows
        if row["filter"] == item.chosen
    }


def by_evalplus(
    steps: Steps, name: str, number: int, options: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """Returns results of evalplus' commands by task_id: text, extracted code, and verdict."""
    from troll.tasks.sandbox.bubblewrap import base_interpreter, scratch_command

    out = steps.work / name
    data = {"HUMANEVAL_OVERRIDE_PATH": f"{name}/evalplus.jsonl"}
    command = [sys.executable, "-m", "evalplus.codegen", "--model", MODEL, "--dataset", "humaneval"]
    command += ["--backend", "hf", "--greedy", "--dtype", "float32", "--attn_implementation", "sdpa"]
    command += [*(["--force_base_prompt"] if options.bare else []), "--root", f"{name}/peer", "--id_range"]
    made, shown = f"{name}/peer/humaneval/*temp_0.0.jsonl", ["python", *command[1:], "[FIRST,LAST]"]
    for first in range(0, number, _PER_PROCESS):
        last = min(first + _PER_PROCESS, number)
        ranged = [*command, f"[{first},{last}]"]
        taken = steps.run(made, ranged, lines=last, shown=shown, environment=data)
    raw = taken.with_suffix(".raw.jsonl")
    # evalplus' guard is not a sandbox, so its command runs in ours, with files only in memory.
    libraries = list(dict.fromkeys(Path(sysconfig.get_path(key)) for key in ("purelib", "platlib")))
    files = {"/troll/samples.jsonl": taken, "/troll/evalplus.jsonl": out / "evalplus.jsonl"}
    evaluate = ["-m", "evalplus.evaluate", "--dataset", "humaneval", "--samples"]
    shown = ["python", *evaluate, str(taken.relative_to(steps.work))]
    inside = shlex.join([base_interpreter(), "-sB", *evaluate, "/scratch/samples.jsonl"])
    script = f"cp /troll/samples.jsonl /scratch/ && {inside} >&2 && cat /scratch/samples_eval_results.json"
    command = scratch_command(libraries, files)
    command += ["--size", str(_EXPECTED_BYTES), "--tmpfs", "/scratch/cache"]  # for its expected outputs
    command += ["--setenv", "PYTHONPATH", os.pathsep.join(map(str, libraries))]
    command += ["--setenv", "HUMANEVAL_OVERRIDE_PATH", "/troll/evalplus.jsonl"]
    command += ["--setenv", "XDG_CACHE_HOME", "/scratch/cache", "/bin/sh", "-c", script]
    target = out / "peer/eval_results.json"
    result = read_json(
        steps.run(f"{name}/peer/eval_results.json", command, to=target, shown=shown, environment=data)
    )
    texts = {row["task_id"]: row["solution"] for row in read_jsonl(raw)}
    return {
        task_id: {
            "text": texts[task_id],
            "taken": rows[0]["solution"],
            "passed": rows[0]["base_status"] == rows[0]["plus_status"] == "pass",
        }
        for task_id, rows in result["eval"].items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs all incomplete steps, and writes OUT.csv and OUT.md."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, required=True, help="a saved model")
    parser.add_argument("--out", type=Path, required=True, help="output path; .csv and .md are added")
    parser.add_argument("--name", help="name of the model in the report; default: the directory")
    parser.add_argument("--work", type=Path, help="directory for completed steps; default: OUT.work")
    sizes = " ".join(f"{name}={item.problems}" for name, item in SETS.items())
    parser.add_argument(
        "--problems", nargs="+", default=sizes.split(), help=f"number of problems per set; default: {sizes}"
    )
    parser.add_argument("--bare", action="store_true", help="do not use the chat template for programs")
    parser.add_argument(
        "--max-tokens", type=int, default=512, help="maximum tokens of an answer in mathematics"
    )
    parser.add_argument("--batch-size", type=int, default=16, help="answers per batch")
    options = parser.parse_args(arguments)
    try:
        options.limits = _limits(options.problems)
        _run(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


def _limits(items: Sequence[str]) -> dict[str, int]:
    limits = {}
    for item in items:
        name, _, number = item.partition("=")
        if name not in SETS or not number.isdecimal() or not int(number):
            raise UserError(f"--problems: {item!r}: expected SET=NUMBER with a set of {', '.join(SETS)}")
        limits[name] = int(number)
    return limits


def _run(options: argparse.Namespace) -> None:
    checkpoint = options.checkpoint.resolve()
    weights = sorted(checkpoint.glob("*.safetensors")) if checkpoint.is_dir() else []
    if not weights:
        raise UserError(f"--checkpoint: {options.checkpoint}: not a saved model, no *.safetensors")
    digest = sha256_of_file(weights[0])[:12]
    settings = {"checkpoint": digest, "max_tokens": options.max_tokens, "problems": options.limits}
    settings["bare"] = options.bare
    work = (options.work or options.out.with_name(f"{options.out.name}.work")).resolve()
    stored = work / "settings.json"
    if stored.exists() and read_json(stored) != settings:
        raise UserError(
            f"{work}: has steps of another model or other settings; choose another --work, or remove it"
        )
    write_text(stored, json.dumps(settings))
    (work / MODEL).unlink(missing_ok=True)
    (work / MODEL).symlink_to(checkpoint)
    steps, margins, rows = Steps(work), Margins(checkpoint), list[dict[str, Any]]()
    for name in options.limits:
        out, number = ours(steps, name, options)
        lm = bool(SETS[name].task)
        peer = by_lm_eval(steps, name, number, options) if lm else by_evalplus(steps, name, number, options)
        rows += compared(name, out, peer, margins)
    frame = pd.DataFrame(rows)
    write_text(
        options.out.with_name(f"{options.out.name}.csv"), frame.to_csv(index=False, lineterminator="\n")
    )
    from importlib.metadata import version

    packages = ("lm_eval", "evalplus", "transformers", "torch")
    about = {
        "model": options.name or checkpoint.name,
        "digest": f"SHA-256 of its weights {digest}",
        "versions": ", ".join(f"{package} {version(package)}" for package in packages),
    }
    write_text(options.out.with_name(f"{options.out.name}.md"), report(frame, about, steps.commands))


if __name__ == "__main__":
    main()
