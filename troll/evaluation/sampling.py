"""Samples responses from a checkpoint in batches, with a seed for each response; interrupted calls resume."""

import hashlib
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from troll.common.digests import digest_of_json
from troll.common.errors import NOT_FINITE, UserError
from troll.common.files import read_json, read_jsonl, write_json, write_jsonl
from troll.common.progress import say
from troll.common.seeding import derive_seed
from troll.common.tokenizers import saved_tokenizer
from troll.evaluation.engines import Engine, Request
from troll.evaluation.engines.transformers import load_engine
from troll.tasks.prompts import as_text, digest_of_ids, encode
from troll.tasks.responses import begins_thought, response_texts
from troll.tasks.types import Problem, Task
from troll.tasks.verifiers.fractions import SCORED
from troll.tasks.verifiers.math import form_of

_PROGRESS_S = 2.0
_DIGEST_LENGTH = 16


@dataclass(frozen=True)
class _Prompt:
    """A prompt as the model reads it."""

    ids: tuple[int, ...]
    cut: bool
    in_thought: bool  # the chat template has begun a thought

    @cached_property
    def digest(self) -> str:
        return digest_of_ids([self.ids])[:_DIGEST_LENGTH]

    def facts(self) -> dict[str, Any]:
        """Returns what the rows of its samples say about it."""
        marks = {"cut": self.cut, "in_thought": self.in_thought}
        return {"prompt_digest": self.digest, **{name: True for name, given in marks.items() if given}}


def sample(
    checkpoint: Path,
    problems: Sequence[Problem],
    *,
    samples_per_problem: int,
    max_new_tokens: int,
    out: Path,
    temperature: float = 1.0,
    batch_size: int = 256,
    seed: int = 0,
    chat: str = "auto",
    thinking: str = "off",
    cut_prompts: bool = False,
    engine: str = "transformers",
    engine_options: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> None:
    """Samples responses and writes them as JSON lines.

    The random stream of a response is derived from (seed, task_id, sample), so neither the batch size nor an
    interruption changes it. Finished batches are kept in ``<out>.parts/`` until ``out`` is written. They are
    not used if settings have changed, or if their prompts have other token ids now.

    A run that stopped at a loss that is not finite (``not_finite: zero``) has no checkpoint; all of its
    samples are empty, so it solves nothing.

    Args:
        checkpoint: directory with model and tokenizer, or the name of a hub model.
        problems: problems with distinct task_ids, at least one.
        samples_per_problem: responses for each problem.
        max_new_tokens: longest response in tokens, end of text included.
        out: file to write: one line ``{"task_id", "sample", "completion", "tokens", "finished"}`` per
            response, in the order of the problems. ``completion`` is the text without special tokens,
            except those that mark thoughts; ``finished`` is false if the response was cut at
            ``max_new_tokens``. ``prompt_digest`` is that of the prompt's token ids; samples of one problem
            with different ones cannot be graded together. ``cut: true`` is added if the prompt was cut,
            ``in_thought: true`` if the chat template has begun a thought at its end.
        temperature: sampling temperature; 0 is greedy.
        batch_size: responses decoded at a time.
        seed: seed of the random streams.
        chat: ``on``, ``off`` or ``auto``, see `troll.tasks.prompts.wants_chat`.
        thinking: ``off``, ``on`` or ``template``, see `troll.tasks.prompts.template_arguments`.
        cut_prompts: cut the start of prompts that are too long, as lm-eval does, instead of raising an error.
        engine: ``transformers`` or ``vllm``; they draw different random numbers, so their texts differ.
        engine_options: arguments of ``vllm.LLM``.
        device: device for transformers; default CUDA if there is one, else CPU.
    """
    _check_arguments(
        problems,
        temperature,
        samples_per_problem=samples_per_problem,
        max_new_tokens=max_new_tokens,
        batch_size=batch_size,
    )
    wanted = [(problem, number) for problem in problems for number in range(samples_per_problem)]
    if _stopped(checkpoint):
        write_jsonl(out, (_row(problem, number, "", 0, True) for problem, number in wanted))
        return
    settings = {
        "checkpoint": _fingerprint(checkpoint),
        "seed": seed,
        "temperature": temperature,
        "max_new_tokens": max_new_tokens,
        "engine": engine,
        "engine_options": dict(engine_options or {}),
        "chat": chat,
        "thinking": thinking,
        "cut_prompts": cut_prompts,
        "prompts": digest_of_json([[problem.task_id, as_text(problem)] for problem in problems]),
    }
    parts = out.with_name(out.name + ".parts")
    rows = _rows_done(parts, settings)
    todo = [(problem, number) for problem, number in wanted if (problem.task_id, number) not in rows]
    if todo:
        loaded = load_engine(
            engine,
            checkpoint,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            device=device,
            options=engine_options,
        )
        encoded = encode(loaded.tokenizer, problems, chat, thinking=thinking)
        in_thought = begins_thought(loaded.tokenizer, chat, thinking=thinking)
        prompts = {
            problem.task_id: _Prompt(
                *_fitting(problem, ids, loaded.context, max_new_tokens, cut_prompts), in_thought
            )
            for problem, ids in zip(problems, encoded, strict=True)
        }
        if any(row.get("prompt_digest") != prompts[task_id].digest for (task_id, _), row in rows.items()):
            say(f"{out}: prompts have other token ids than when an earlier call was interrupted; starts anew")
            shutil.rmtree(parts)
            rows, todo = _rows_done(parts, settings), list(wanted)
        # Prompts of similar length share a batch, which needs little padding.
        todo.sort(key=lambda item: len(prompts[item[0].task_id].ids))
        progress = _Progress(out, len(todo), len(wanted))
        for start in range(0, len(todo), batch_size):
            batch = _sampled(loaded, todo[start : start + batch_size], prompts, seed)
            name = f"{batch[0]['task_id']}-{batch[0]['sample']}".encode()
            write_jsonl(parts / f"{hashlib.sha256(name).hexdigest()[:16]}.jsonl", batch)
            rows.update({(row["task_id"], row["sample"]): row for row in batch})
            progress.add(len(batch), sum(row["tokens"] for row in batch))
    write_jsonl(out, (rows[problem.task_id, number] for problem, number in wanted))
    shutil.rmtree(parts, ignore_errors=True)


def digests_of_prompts(
    checkpoint: Path, problems: Sequence[Problem], *, thinking: str = "off"
) -> dict[str, str]:
    """Returns the digest of each problem's prompt by task_id, as `sample` records it."""
    encoded = encode(saved_tokenizer(checkpoint), problems, thinking=thinking)
    return {
        problem.task_id: _Prompt(tuple(ids), cut=False, in_thought=False).digest
        for problem, ids in zip(problems, encoded, strict=True)
    }


def write_oracle(task: Task, problems: Path, out: Path) -> None:
    """Writes one sample per problem: its reference solution, with the answer boxed at the end if need be."""
    rows = [
        {
            "task_id": problem.task_id,
            "sample": 0,
            "completion": _solution(problem) if task.kind == "math" else _program(problem),
        }
        for problem in task.load(problems)
    ]
    write_jsonl(out, rows)


def _solution(problem: Problem) -> str:
    r"""Returns the reference solution, followed by the boxed reference answer unless it contains a box.

    Nothing follows the box: lm-eval's gsm8k reads the last number of ``$\boxed{18}$.`` as ``$.``.
    """
    solution = str(problem.record.get("solution") or "")
    if form_of(problem.record) == "####":
        return f"{solution}\n#### {problem.answer}"
    return solution if "\\boxed{" in solution else f"{solution}\n\n\\boxed{{{problem.answer}}}"


def _program(problem: Problem) -> str:
    """Returns the reference program, in a fenced block if the reward reads only those."""
    return f"```python\n{problem.answer}\n```" if SCORED in problem.record else problem.answer


def _check_arguments(problems: Sequence[Problem], temperature: float, **counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise UserError(f"sampling: {name} is {value}; must be at least 1")
    if not temperature >= 0:
        raise UserError(f"sampling: temperature is {temperature}; must be 0 (greedy) or more")
    if not problems:
        raise UserError("sampling: there are no problems")
    seen: set[str] = set()
    for problem in problems:
        if problem.task_id in seen:
            raise UserError(
                f"sampling: task_id {problem.task_id!r} occurs twice; every problem needs its own task_id"
            )
        seen.add(problem.task_id)


def _stopped(checkpoint: Path) -> bool:
    """Tells whether the checkpoint's run stopped at a loss that is not finite, and so left no model."""
    manifest = checkpoint.parent / "manifest.json"
    if checkpoint.exists() or not manifest.is_file():
        return False
    found = read_json(manifest)
    return isinstance(found, dict) and NOT_FINITE in found


def _row(problem: Problem, number: int, text: str, tokens: int, finished: bool) -> dict[str, Any]:
    return {
        "task_id": problem.task_id,
        "sample": number,
        "completion": text,
        "tokens": tokens,
        "finished": finished,
    }


def _fingerprint(checkpoint: Path) -> str:
    """Returns a digest that changes with the checkpoint: of the names, sizes and times of its files."""
    if not checkpoint.is_dir():
        return str(checkpoint)
    files = sorted(path for path in checkpoint.iterdir() if path.is_file())
    text = "\n".join(f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files)
    return hashlib.sha256(text.encode()).hexdigest()


def _rows_done(parts: Path, settings: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
    """Returns the rows of an interrupted call with the same settings; removes those with other settings."""
    record = parts / "settings.json"
    if record.exists() and read_json(record) == settings:
        return {
            (row["task_id"], row["sample"]): row
            for path in sorted(parts.glob("[!.]*.jsonl"))
            for row in read_jsonl(path)
        }
    shutil.rmtree(parts, ignore_errors=True)
    write_json(record, settings)
    return {}


def _sampled(
    engine: Engine,
    batch: Sequence[tuple[Problem, int]],
    prompts: Mapping[str, _Prompt],
    seed: int,
) -> list[dict[str, Any]]:
    """Samples a batch and returns its rows; ``prompts`` are by task_id."""
    requests = [
        Request(
            prompts[problem.task_id].ids,
            derive_seed(stream="sample", seed=seed, problem=problem.task_id, sample=number),
        )
        for problem, number in batch
    ]
    responses = engine.complete(requests)
    texts = response_texts(engine.tokenizer, [response.tokens for response in responses])
    return [
        _row(problem, number, text, len(response.tokens), response.finished)
        | prompts[problem.task_id].facts()
        for (problem, number), response, text in zip(batch, responses, texts, strict=True)
    ]


def _fitting(
    problem: Problem, ids: Sequence[int], context: int | None, max_new_tokens: int, cut: bool
) -> tuple[tuple[int, ...], bool]:
    """Returns the prompt, cut at its start if it does not fit into the context, and whether it is cut."""
    if not ids:
        raise UserError(f"sampling: the prompt of {problem.task_id} has no tokens")
    if context is None or len(ids) + max_new_tokens <= context:
        return tuple(ids), False
    if not cut:
        raise UserError(
            f"sampling: the prompt of {problem.task_id} has {len(ids)} tokens; with max_new_tokens "
            f"{max_new_tokens} it exceeds the model's context of {context} tokens"
        )
    if max_new_tokens >= context:
        raise UserError(
            f"sampling: max_new_tokens {max_new_tokens} leaves no room for a prompt in the model's context "
            f"of {context} tokens"
        )
    return tuple(ids[max_new_tokens - context :]), True


class _Progress:
    """Prints progress: samples done, tokens per second and seconds left."""

    def __init__(self, out: Path, todo: int, total: int) -> None:
        self._out, self._todo, self._total = out, todo, total
        self._done = self._tokens = 0
        self._start = self._said = time.monotonic()
        if todo < total:
            print(f"{out}: resumes after {total - todo} of {total} samples", file=sys.stderr, flush=True)

    def add(self, rows: int, tokens: int) -> None:
        """Counts a batch; prints at most every `_PROGRESS_S` seconds, and at the end."""
        self._done += rows
        self._tokens += tokens
        now = time.monotonic()
        if now - self._said < _PROGRESS_S and self._done < self._todo:
            return
        self._said = now
        elapsed = now - self._start
        left = elapsed / self._done * (self._todo - self._done)
        print(
            f"{self._out}: {self._total - self._todo + self._done} of {self._total} samples, "
            f"{self._tokens / max(elapsed, 1e-9):.0f} tokens/s, {left:.0f} s left",
            file=sys.stderr,
            flush=True,
        )
