"""Rewards of responses, and of the greedy responses that are the baseline of ReMax."""

import copy
import functools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from troll.common.errors import UserError
from troll.training.learning_signal import LearningSignal
from troll.training.order import OrderedTrainer


def check_greedy(trainer: Any) -> None:
    """Rejects custom rollout functions and environments, which give no greedy responses."""
    for name in ("rollout_func", "environment_factories"):
        if getattr(trainer, name, None) is not None:
            option = "environment_factory" if name == "environment_factories" else name
            raise UserError(
                f"estimator 'remax' needs a greedy response to every prompt, which {option} does not give; "
                "leave it out or choose another estimator, such as 'rloo'"
            )


class RewardedTrainer(OrderedTrainer):
    """TRL's trainer with access to the reward of each response and of greedy responses."""

    signal: LearningSignal
    generated_samples: int
    generation_config: Any  # TRL's, as are those below
    _tokens_of_tools: list[int] | None = None
    _rows_validated: list[int] = []  # noqa: RUF012 - never mutated
    _metrics: dict[str, Any]
    _pending_metrics: dict[str, Any]
    _pending_extra_logs: dict[str, Any]

    def _tokenize_prompts(self, prompts: Any) -> Any:
        ids, *rest = super()._tokenize_prompts(prompts)
        limit = self.args.max_prompt_tokens
        return ([one[-limit:] for one in ids] if limit is not None else ids, *rest)

    def _report(self, name: str, value: Tensor | float) -> None:
        """Adds a number, averaged over processes, to the log of the next optimiser step."""
        value = torch.as_tensor(value, dtype=torch.float64, device=self.accelerator.device)
        self._metrics["train"][name].append(float(self.accelerator.reduce(value, "mean")))

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Logs as TRL, but the means of a validation are over responses: its last batch may be smaller."""
        if not self.model.training:
            rows, self._rows_validated = self._rows_validated, []
            if len(set(rows)) > 1:
                of_batches = {name: v for name, v in self._metrics["eval"].items() if len(v) == len(rows)}
                self._metrics["eval"] |= {name: [_mean(v, rows)] for name, v in of_batches.items()}
        super().log(logs, *args, **kwargs)

    def _generate(self, *prompts: Any, **options: Any) -> Any:
        generated = super()._generate(*prompts, **options)
        tool_masks = generated[2]
        self._tokens_of_tools = None if tool_masks is None else [mask.count(0) for mask in tool_masks]
        return generated

    def record_rewards(self) -> None:
        """Keeps what `_calculate_rewards` returns; to be called once, by the constructor.

        The method of the object is wrapped, so that estimators see the rewards of a subclass that
        overrides it.
        """
        calculate = self._calculate_rewards

        @functools.wraps(calculate)
        def recorded(inputs: Any, prompts: Any, completions: Any, ids: Any) -> Tensor:
            rewards: Tensor = calculate(inputs, prompts, completions, ids)
            self._rewards_per_function = rewards
            of_tools = self._tokens_of_tools or [0] * len(ids)
            self._response_lengths = [
                len(response) - other for response, other in zip(ids, of_tools, strict=True)
            ]
            return rewards

        self.__dict__["_calculate_rewards"] = recorded

    def response_lengths(self) -> Tensor:
        """Tokens [B] of the responses that this process scored last, as sampled, without those of tools.

        The masks of a batch do not tell them: with ``mask_truncated_completions`` they are 0 for a truncated
        response.
        """
        return torch.tensor(self._response_lengths, device=self.accelerator.device)

    def total_rewards(self, rows: int) -> Tensor:
        """Weighted rewards [B] of the ``rows`` responses that this process scored last."""
        per_function = self._rewards_per_function
        if self.model.training and self.method.needs_every_reward and per_function.isnan().all(1).any():
            raise UserError(
                "no reward function gave a number for some response (each returned None); estimators need "
                "a reward for every response: return 0, or leave estimator out"
            )
        rewards: Tensor = (per_function * self.reward_weights.to(per_function.device)).nansum(1)
        start = rows * self.accelerator.process_index
        return rewards[start : start + rows]

    def greedy_rewards(self, inputs: list[dict[str, Any]]) -> Tensor:
        """Reward [B] of the greedy response to each row's prompt, which is generated once per group."""
        prompts = inputs[:: self.num_generations]
        texts = [item["prompt"] for item in prompts]
        with self._greedy(), self._unlogged():
            _, ids, _, responses, *_ = self._generate(texts)
            self._calculate_rewards(prompts, texts, responses, ids)
        rewards = self.total_rewards(len(prompts))
        self._report("greedy_success", rewards.mean())
        self.generated_samples += len(prompts) * self.accelerator.num_processes
        rewards = rewards + self.signal.penalty(self.response_lengths().to(rewards))
        return rewards.repeat_interleave(self.num_generations)

    def greedy_success(self, rows: Sequence[Mapping[str, Any]], reward: Any) -> tuple[float, float]:
        """Greedy responses to the ``prompt`` of each row: share with a reward of 1, and mean reward.

        Every process generates for equally many rows in equally many batches, as sharded models and vLLM need
        all processes at once; the rows that fill up a process's share do not count.
        """
        own = rows[self.accelerator.process_index :: self.accelerator.num_processes]
        share, size = -(-len(rows) // self.accelerator.num_processes), self.args.per_device_eval_batch_size
        filled = [*own, *rows[: share - len(own)]]
        rewards: list[float] = []
        training = self.model.training
        self.model.eval()
        with self._greedy(), self._unlogged():
            for start in range(0, share, size):
                batch = filled[start : start + size]
                _, ids, _, responses, *_ = self._generate([row["prompt"] for row in batch])
                counted = len(own[start : start + size])
                names = [row["task_id"] for row in batch[:counted]]
                given = {"completions": responses[:counted], "completion_ids": ids[:counted]}
                rewards += reward(**given, task_id=names)
        self.model.train(training)
        sums = [float(rewards.count(1.0)), sum(rewards)]
        found = torch.tensor(sums, dtype=torch.float64, device=self.accelerator.device)
        success, mean = (self.accelerator.reduce(found, "sum") / len(rows)).tolist()
        return success, mean

    @contextmanager
    def _greedy(self) -> Iterator[None]:
        sampling = self.generation_config
        self.generation_config = copy.deepcopy(sampling)
        # The other values are transformers' defaults, which have no effect on greedy decoding.
        self.generation_config.update(do_sample=False, temperature=1.0, top_p=1.0, top_k=50, min_p=None)
        engine = self.vllm_generation if self.use_vllm else None
        if engine is not None:
            temperature, engine.temperature = engine.temperature, 0.0
        try:
            yield
        finally:
            self.generation_config = sampling
            if engine is not None:
                engine.temperature = temperature

    @contextmanager
    def _unlogged(self) -> Iterator[None]:
        """Discards the metrics of responses generated inside, so the log only has those of samples."""
        names = ("_metrics", "_pending_metrics", "_pending_extra_logs")
        kept = {name: getattr(self, name) for name in names}
        tokens = self.state.num_input_tokens_seen
        self._metrics = {mode: defaultdict(list) for mode in kept["_metrics"]}
        self._pending_metrics, self._pending_extra_logs = defaultdict(list), defaultdict(list)
        try:
            yield
        finally:
            self.state.num_input_tokens_seen = tokens
            for name, value in kept.items():
                setattr(self, name, value)


def _mean(values: Sequence[float], weights: Sequence[int]) -> float:
    """Weighted mean of the values that are not NaN; NaN if there are none."""
    pairs = [pair for pair in zip(values, weights, strict=True) if not math.isnan(pair[0])]
    total = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / total if total else math.nan
