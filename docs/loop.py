"""TROLL's training loop in one file: rollout, advantage, projection, loss, step. No TRL, no transformers.

    python docs/loop.py

A tiny recurrent language model learns to write the sum of two digits. Deviations from the paper
(arXiv 2510.03817); docs/algorithms.md has the reasons and the rest:

* Both policies keep the old policy's tokens and pool the rest with its exact mass; the paper keeps those of
  both and assigns 1e-12 to each of the rest.
* The projection is solved by Newton's method; the paper brackets with 8 points in up to 20 rounds.
* A GRU of 27,000 weights learns one-token answers at 1e-2; the paper trains Qwen3 and others at 1e-6.
"""

import torch
from torch import Tensor, nn

from troll.algorithms.advantages import RewardBatch
from troll.algorithms.advantages.estimators import grpo
from troll.algorithms.aggregation import aggregate
from troll.algorithms.distributions import SparseLogProbs
from troll.algorithms.lm_head.head import lm_head
from troll.algorithms.trust_regions import TokenPolicy, make_trust_region

PLUS, EQUALS, END = 10, 11, 12  # after ten digits
VOCABULARY, WIDTH = 13, 64
KL_BOUND, KEEP, DROPPED_MASS = 0.05, 8, 1e-5  # the paper: 0.05 nats per token, 64 tokens, 1e-5
PROMPTS, GROUP, LENGTH = 16, 8, 2  # prompts of a batch, responses to each, tokens of a response
BATCHES, PASSES, MINI_BATCHES = 40, 2, 4


class Model(nn.Module):
    """A recurrent language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.backbone = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Hidden states [B, L, D] of token ids [B, L]; `head` turns them into logits."""
        hidden: Tensor = self.backbone(self.embedding(ids))[0]
        return hidden


def draw_prompts(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Prompts ``a+b=`` [B, 4], each for a whole group, and their answers [B]."""
    terms = torch.randint(5, (PROMPTS, 2), generator=generator).repeat_interleave(GROUP, 0)
    signs = torch.tensor([[PLUS, EQUALS]]).expand(len(terms), 2)
    return torch.stack([terms[:, 0], signs[:, 0], terms[:, 1], signs[:, 1]], 1), terms.sum(1)


@torch.no_grad()
def rollout(model: Model, prompts: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Responses [B, T] drawn from the whole distribution, and the mask of tokens up to the end, inclusive."""
    ids = prompts
    for _ in range(LENGTH):
        probabilities = model.head(model(ids)[:, -1]).softmax(-1)
        ids = torch.cat([ids, torch.multinomial(probabilities, 1, generator=generator)], 1)
    responses = ids[:, prompts.shape[1] :]
    ended_before = (responses == END).cumsum(1) - (responses == END).long() > 0
    return responses, ~ended_before


def policy_at(model: Model, prompts: Tensor, responses: Tensor, support: Tensor | None) -> TokenPolicy:
    """The policy at the response tokens. Without a ``support``, its most likely tokens are kept."""
    states = model(torch.cat([prompts, responses], 1))[:, prompts.shape[1] - 1 : -1]
    chosen = {"support_size": KEEP, "dropped_mass": DROPPED_MASS} if support is None else {}
    flat = None if support is None else support.flatten(0, 1)
    labels, rows = responses.flatten(), states.flatten(0, 1)
    output = lm_head(rows, model.head.weight, labels, support=flat, **chosen)  # type: ignore[arg-type]
    assert output.distribution is not None
    distribution = output.distribution.scatter(torch.ones_like(responses, dtype=torch.bool))
    shape = responses.shape
    return TokenPolicy(
        output.label_log_probs.view(shape), distribution, output.entropy.view(shape), responses
    )


def train(rule: str = "troll", batches: int = BATCHES, seed: int = 0) -> list[dict[str, float]]:
    """Trains a new model; returns the metrics of each rollout batch."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    settings = {"kl_bound": KL_BOUND} if rule == "troll" else {}
    model, trust_region = Model(), make_trust_region(rule, **settings)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    log = []
    for _ in range(batches):
        prompts, answers = draw_prompts(generator)
        responses, mask = rollout(model, prompts, generator)
        rewards = (responses[:, 0] == answers).float()
        groups = torch.arange(PROMPTS).repeat_interleave(GROUP)
        batch = RewardBatch(rewards, groups, mask, None, torch.zeros(mask.shape), None)
        advantages = grpo(batch).advantages
        with torch.no_grad():  # what samples were drawn from, kept for all passes over the batch
            old = policy_at(model, prompts, responses, None)
        assert old.distribution is not None
        metrics: dict[str, float] = {"success": float(rewards.mean())}
        for _ in range(PASSES):
            for rows in torch.randperm(len(prompts), generator=generator).chunk(MINI_BATCHES):
                kept = old.distribution.token_ids[rows]
                new = policy_at(model, prompts[rows], responses[rows], kept)
                stored = {name: value[rows] for name, value in old.distribution.to_batch().items()}
                distribution = SparseLogProbs.from_batch(stored)
                before = TokenPolicy(old.log_probs[rows], distribution, None, responses[rows])
                losses = trust_region(new, before, advantages[rows], mask[rows])
                optimiser.zero_grad()
                aggregate(losses.per_token, mask[rows], "token-mean").backward()
                optimiser.step()
                for name in ("kl_to_old", "kl_projected", "clip_fraction"):
                    if name in losses.metrics:
                        largest = float(losses.metrics[name].detach().where(mask[rows], 0.0).max())
                        metrics[name] = max(metrics.get(name, 0.0), largest)
        log.append(metrics)
    return log


if __name__ == "__main__":
    for number, row in enumerate(train(), start=1):
        print(number, " ".join(f"{name} {value:.3f}" for name, value in row.items()))
