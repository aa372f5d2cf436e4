"""Full next-token distributions of two checkpoints at the same tokens, to compare sparse ones with."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from troll.common.errors import UserError
from troll.common.files import read_jsonl
from troll.common.models import check_checkpoint, load_model
from troll.tasks.types import Problem


def policy_pairs(
    old: Path, new: Path, problems: Sequence[Problem], samples: Path, tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the log-probabilities of two checkpoints at the tokens of sampled responses.

    Args:
        old: checkpoint that generated ``samples``.
        new: another checkpoint with the same tokenizer.
        problems: the problems that were sampled.
        samples: JSON lines with task_id and completion.
        tokens: N, number of response tokens to take, from the first response on.

    Returns:
        old [N, V] and new [N, V] in float64, and the sampled tokens [N].
    """
    for path in (old, new):
        check_checkpoint(path)
    tokenizer = AutoTokenizer.from_pretrained(old)
    prompts = {problem.task_id: problem.prompt for problem in problems}
    models = [load_model(path, dtype=torch.float32).eval() for path in (old, new)]
    parts: list[list[Tensor]] = [[], []]
    labels: list[Tensor] = []
    for row in read_jsonl(samples):
        found = sum(map(len, labels))
        if found >= tokens:
            break
        prompt = tokenizer(prompts[row["task_id"]], add_special_tokens=False).input_ids
        answer = [*tokenizer(row["completion"], add_special_tokens=False).input_ids, tokenizer.eos_token_id]
        answer = answer[: tokens - found]
        labels.append(torch.tensor(answer))
        for part, model in zip(parts, models, strict=True):
            part.append(_log_probs(model, prompt + answer)[-len(answer) - 1 : -1])
    if sum(map(len, labels)) < tokens:
        raise UserError(f"{samples}: has {sum(map(len, labels))} response tokens, fewer than {tokens}")
    return torch.cat(parts[0]), torch.cat(parts[1]), torch.cat(labels)


@torch.no_grad()
def _log_probs(model: Any, ids: list[int]) -> Tensor:
    return torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0].double(), dim=-1)
