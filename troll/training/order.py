"""The order of prompts, the same whenever a run goes on in the middle of it."""

from collections.abc import Callable, Iterator

import torch
from trl.trainer.utils import RepeatSampler


class ResumableSampler(RepeatSampler):
    """TRL's order of prompts, epoch by epoch, also for a process that begins in a later epoch.

    TRL 1.16 draws each epoch's order from one generator that goes on from epoch to epoch; a process that
    resumes has a new one, and would repeat the first epoch's order.

    Args:
        sampler: TRL's.
        epoch: the epoch that is about to begin or to go on, from 0.
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
