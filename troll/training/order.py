"""Order of prompts, rollout batches and random streams, which resumed runs reproduce."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from troll.algorithms.aggregation import RELEASED
from troll.algorithms.trust_regions import TrustRegion
from troll.common.seeding import derive_seed
from troll.training.batches import step_counts, with_response_weights
from troll.training.method import Method
from troll.training.policy_lag import PolicyLag
from troll.training.shared_prompts import GROUP, whole_groups
from troll.training.trl_parts import GRPOTrainer, RepeatSampler


class ResumableSampler(RepeatSampler):
    """TRL's order of prompts, also for a process that starts in a later ``epoch`` (from 0).

    TRL draws the orders of all epochs from one generator; a resumed process has a new generator and
    would repeat the first epoch's order.
    """

    def __init__(self, sampler: RepeatSampler, epoch: Callable[[], int]) -> None:
        super().__init__(
            sampler.data_source,
            sampler.mini_repeat_count,
            sampler.batch_size,
            sampler.repeat_count,
            sampler.shuffle,
            sampler.seed,
        )
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self.shuffle:
            self.generator.manual_seed(self.seed)
            for _ in range(self._epoch()):
                torch.randperm(self.num_samples, generator=self.generator)
        yield from super().__iter__()


class OrderedTrainer(GRPOTrainer):
    """TRL's trainer, but all micro-batches of an optimiser step are prepared at its start.

    The weights do not change during a step, so a rollout batch that begins inside the step can be sampled at
    its start. The normalisers thus count all tokens of the step, however steps and rollout batches overlap.
    """

    method: Method
    trust_region: TrustRegion
    policy_lag: PolicyLag
    step_inputs: list[dict[str, Any]] = []  # noqa: RUF012 - never mutated
    """Micro-batches of this optimiser step, with the counts of `troll.training.batches.step_counts`."""
    _step: int  # TRL's: number of micro-batches so far
    _buffered_inputs: list[dict[str, Any]] | None  # TRL's: the current rollout batch
    _step_begun = 0
    _fetched: list[Any] | None = None

    @property
    def rollout_batch(self) -> int:
        """Index of the current rollout batch, from 0."""
        return self._step // self._generate_every

    @property
    def place_in_step(self) -> int:
        """Index of the micro-batch in its optimiser step, from 0."""
        return self._step - self._step_begun

    @property
    def begins_batch(self) -> bool:
        """Whether this optimiser step is the first one on a rollout batch."""
        return self._step_begun % self._generate_every == 0

    @property
    def _generate_every(self) -> int:
        return int(self.args.steps_per_generation * self.num_iterations)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(dataset)
        return ResumableSampler(sampler, lambda: int(self.state.epoch or 0))

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Fetches the generation batches of an optimiser step, one for each micro-batch."""
        fetched = super().get_batch_samples(*args, **kwargs)
        self._fetched, self.step_inputs, self._step_begun = fetched[0], [], self._step
        return fetched

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        if not self.model.training:
            self._seed_rollouts("validation")
            return step_counts([super()._prepare_inputs(generation_batch)], self.accelerator)[0]
        if self.place_in_step >= len(self.step_inputs):
            self._begin_step(self._fetched or [generation_batch])
        if self._step % self._generate_every == 0:
            self.trust_region.start_batch()
        return self.step_inputs[self.place_in_step]

    def _begin_step(self, generation_batches: list[Any]) -> None:
        """Prepares the micro-batches of a step, and samples each rollout batch that begins in it."""
        first, inputs = self._step, []
        try:
            for number, batch in enumerate(generation_batches, start=first):
                self._step = number
                if number % self._generate_every == 0 or self._buffered_inputs is None:
                    self._seed_rollouts("rollout")
                    self.policy_lag.start_batch(self.model, self.rollout_batch)
                prepared = super()._prepare_inputs(batch)
                if GROUP in prepared:  # a new rollout batch, which TRL has shuffled
                    assert self._buffered_inputs is not None
                    self._buffered_inputs = whole_groups(self._buffered_inputs)
                    prepared = self._buffered_inputs[number % self.args.steps_per_generation]
                inputs.append(prepared)
        finally:
            self._step = self._step_begun = first
        self._fetched, self.step_inputs = None, step_counts(inputs, self.accelerator)
        if self.method.aggregation == RELEASED:
            budget = self.args.micro_batch_tokens
            self.step_inputs = with_response_weights(self.step_inputs, budget, self.accelerator)

    def _seed_rollouts(self, stream: str) -> None:
        coordinates = {"seed": self.args.seed, "process": self.accelerator.process_index}
        torch.manual_seed(derive_seed(stream=stream, batch=self.rollout_batch, **coordinates) % 2**63)
