"""Settings of what an experiment measures besides its runs: public data sets, and the cost of updates."""

from typing import Any, Literal

from pydantic import Field, model_validator

from troll.algorithms.ranges import Count, NotNegative
from troll.common.settings import StrictModel
from troll.experiment.settings import Size


class PublicData(StrictModel):
    """Public data sets without training: the audit of the graders, and benchmarks of the base models."""

    source: Literal["mirror", "hub"] = Field(
        "mirror", description="`mirror`: skip all of this unless TROLL_DATA_MIRROR is set; `hub`: download"
    )
    audit: Literal["none", "fast", "full"] = Field(
        "none", description="audit of the graders: `fast` on samples of the data sets, `full` on all problems"
    )
    benchmarks: list[str] = Field(
        [], description="data sets on which base models and reference solutions are graded"
    )
    problems: Size = Field(32, description="number of test problems of each benchmark, or all")
    samples: Count = Field(1, description="samples of a base model for each problem")
    max_tokens: Count = Field(64, description="longest response of a base model, in tokens")


class StepBenchmark(StrictModel):
    """Times whole optimiser steps of a random language model with clip, TROLL, and clip with a critic."""

    shape: Literal["qwen3-0.6b", "20m", "tiny"] = Field("20m", description="size of the model")
    responses: Count = Field(8, description="B, responses in the mini-batch")
    prompt: Count = Field(64, description="tokens of each prompt")
    response: Count = Field(192, description="T, tokens of each response")


class CostBenchmark(StrictModel):
    """Times forward and backward of output layer and loss with clip and TROLL, for the cost table."""

    tokens: Count = Field(512, description="N, tokens of the update")
    widths: list[Count] = Field([1024], min_length=1, description="D, hidden widths to measure")
    vocabulary: Count = Field(151_936, description="V, entries of the vocabulary; Qwen3's by default")
    repeats: Count = Field(3, description="measurements of each variant")
    step: StepBenchmark | None = Field(
        None, description="also time whole optimiser steps; none: only the update"
    )


class Evaluation(StrictModel):
    """How checkpoints are sampled and graded on the test split."""

    samples: Count = Field(8, description="samples for each problem")
    temperature: NotNegative = Field(1.0, description="sampling temperature; 0 is greedy")
    batch_size: Count = Field(256, description="responses sampled at a time")
    engine: Literal["transformers", "vllm"] = Field(
        "transformers", description="engine that samples; vllm is for pretrained models only"
    )
    engine_options: dict[str, Any] = Field(
        {}, description="arguments of `vllm.LLM`, such as gpu_memory_utilization or tensor_parallel_size"
    )

    @model_validator(mode="after")
    def _options_have_an_engine(self) -> "Evaluation":
        if self.engine_options and self.engine != "vllm":
            raise ValueError(f"engine_options are for the engine vllm; {self.engine} has none")
        parallel = self.engine_options.get("tensor_parallel_size", 1)
        if type(parallel) is not int or parallel < 1:
            raise ValueError(f"engine_options.tensor_parallel_size is {parallel!r}, must be an integer >= 1")
        return self

    @property
    def gpus(self) -> int:
        """GPUs of a job that samples a pretrained model: one, or as many as vLLM splits it across."""
        return self.engine_options.get("tensor_parallel_size", 1)
