"""The worker of `step`: measures whole optimiser steps of one method."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from harness import LEAST_PROJECTED, Clock, serve, timed
from troll.algorithms.aggregation import aggregate
from troll.algorithms.distributions import SparseLogProbs
from troll.algorithms.trust_regions import TokenPolicy, make_trust_region
from troll.common.seeding import derive_seed

METHODS = ("clip", "troll", "clip, critic")
"""Clip and TROLL with group advantages (GRPO), and clip with advantages from a critic (GAE)."""
SHAPES: dict[str, dict[str, Any]] = {
    # The published configuration of Qwen/Qwen3-0.6B.
    "qwen3-0.6b": {
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    # For CPUs: large enough that arithmetic dominates, not the interpreter.
    "20m": {
        "vocab_size": 8192,
        "hidden_size": 384,
        "intermediate_size": 1152,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 64,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
}
WARM_UP = 2


@dataclass(frozen=True)
class Work:
    """Settings of a measurement.

    Attributes:
        method: one of `METHODS`.
        shape: one of `SHAPES`; weights are random.
        responses: B, number of responses, all of full length.
        prompt: tokens of each prompt.
        response: T, tokens of each response.
        keep: K, tokens kept of TROLL's old policy.
        steps: measured optimiser steps, after `WARM_UP`.
        device: cpu or cuda.
    """

    method: str
    shape: str
    responses: int
    prompt: int
    response: int
    keep: int
    steps: int
    device: str


class Learner:
    """A policy, its optimiser, a batch, and a critic if the method has one."""

    def __init__(self, work: Work) -> None:
        from transformers import Qwen3Config, Qwen3ForCausalLM

        from troll.training.head import add_sparse_lm_head

        torch.manual_seed(derive_seed(purpose="cost-step") % 2**63)
        shape, device = SHAPES[work.shape], work.device
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        with torch.device(device):  # initialising 0.6 billion parameters is slow on a CPU
            model = Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=True))
        self.model: Any = model.to(dtype)
        self.critic = self._critic() if work.method == "clip, critic" else None
        add_sparse_lm_head(self.model, temperature=1.0)
        size = (work.responses, work.prompt + work.response)
        self.ids = torch.randint(0, shape["vocab_size"], size, device=device)
        self.mask = torch.ones(work.responses, work.response, dtype=torch.long, device=device)
        self.advantages = torch.randn(work.responses, 1, device=device).expand_as(self.mask).contiguous()
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-6, weight_decay=0.0)
        self.rule = make_trust_region(work.method.partition(",")[0])
        self.keep = work.keep if work.method == "troll" else None
        self.old = TokenPolicy(self.advantages, None)
        self.values = self.advantages
        self.projected: Tensor | None = None

    def _critic(self) -> Any:
        from accelerate import Accelerator

        from troll.experiment.settings import Critic as CriticSettings
        from troll.training.critic import Critic

        accelerator = Accelerator(cpu=not torch.cuda.is_available())
        critic = Critic(self.model, CriticSettings(learning_rate=1e-6), accelerator, chunk=8)
        critic.prepare()
        return critic

    def projected_share(self) -> float:
        """Returns the share of tokens that the last step projected; NaN for rules without projection."""
        return math.nan if self.projected is None else float(self.projected.double().mean())

    def policy(self, keep: int | None = None, support: Tensor | None = None) -> TokenPolicy:
        """Evaluates the model: distributions for TROLL, only log-probs of sampled tokens for clip."""
        output = self.model(
            input_ids=self.ids,
            attention_mask=torch.ones_like(self.ids),
            mask=self.mask,
            sparse_lm_head=True,
            support_size=keep,
            support=support,
        )
        distribution = None if output.token_ids is None else SparseLogProbs.from_batch(output)
        return TokenPolicy(output.log_probs, distribution, output.entropy, self.ids[:, -self.mask.shape[1] :])

    def _critic_inputs(self) -> dict[str, Tensor]:
        length = self.mask.shape[1]
        prompts, responses = self.ids[:, :-length], self.ids[:, -length:]
        return {
            "prompt_ids": prompts,
            "prompt_mask": torch.ones_like(prompts),
            "completion_ids": responses,
            "completion_mask": self.mask,
            "values": self.values,
            "returns": self.values + self.advantages,
            "step_tokens": self.mask.sum(),
        }

    @torch.no_grad()
    def score(self) -> None:
        """Computes the old policy and the critic's values, once per rollout."""
        self.old = self.policy(keep=self.keep)
        if self.critic is not None:
            self.values = self.critic.values(self._critic_inputs(), self.mask)

    @torch.no_grad()
    def leave_balls(self) -> None:
        """Moves the old distributions so that one token in ten is outside its trust region.

        Otherwise nothing would be projected, because the rollout is scored with the weights before the step.
        """
        if self.old.distribution is not None:
            self.old = replace(self.old, distribution=moved(self.old.distribution))

    def step(self) -> None:
        """Runs one optimiser step of the policy, and of the critic if there is one."""
        support = None if self.old.distribution is None else self.old.distribution.token_ids
        new = self.policy(support=support)
        losses = self.rule(new, self.old, self.advantages, self.mask.float())
        self.projected = None if support is None else losses.metrics["clip_fraction"]
        loss = aggregate(losses.per_token, self.mask, "token-mean")
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        if self.critic is not None:
            self.critic.update(self._critic_inputs(), self.mask)


def moved(old: SparseLogProbs) -> SparseLogProbs:
    """Changes every tenth distribution so much that an unchanged policy is outside its trust region.

    The log-probs of kept tokens get random noise, and a total mass of 0.9, or 0.3 if they have more than 0.6.
    The KL divergence from the former to the new distribution is then at least 0.19 nats (from these masses
    alone); the paper's bound is 0.05.

    Args:
        old: [..., K] with some mass in the tail.
    """
    log_probs, tail = old.log_probs, old.tail_log_prob
    here = (torch.arange(tail.numel(), device=tail.device) % round(1 / LEAST_PROJECTED) == 0).view(tail.shape)
    share = torch.where(tail.exp() < 0.4, 0.3, 0.9).to(tail.dtype)
    tilted = log_probs + torch.randn_like(log_probs)
    tilted = tilted - (tilted.logsumexp(-1) - share.log()).unsqueeze(-1)
    return SparseLogProbs(
        old.token_ids,
        torch.where(here.unsqueeze(-1), tilted, log_probs),
        torch.where(here, (1 - share).log(), tail),
    )


def measure(work: Work) -> dict[str, Any]:
    """Measures seconds of scoring and of steps, the share of projected tokens, and peak memory.

    Memory includes weights, optimiser states and gradients, but not the libraries.
    """
    memory = Clock(work.device)
    learner = Learner(work)
    measured: dict[str, Any] = {
        "old_seconds": [],
        "seconds": [],
        "processor_seconds": [],
        "projected_share": [],
    }
    for repeat in range(-WARM_UP, work.steps):
        scored = timed(work.device, learner.score)
        learner.leave_balls()
        stepped = timed(work.device, learner.step)
        if repeat >= 0:
            measured["projected_share"].append(learner.projected_share())
            measured["old_seconds"].append(scored[0])
            measured["seconds"].append(stepped[0])
            measured["processor_seconds"].append(stepped[1])
    return measured | {"peak_bytes": memory.read()["peak_bytes"]}


if __name__ == "__main__":
    serve(Work, measure)
