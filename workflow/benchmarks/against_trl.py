"""Processor time and memory of one optimiser step of `TrustRegionTrainer`, against TRL's `GRPOTrainer`.

Every measurement is a process of its own, on one thread; the trainers take turns. Responses are random tokens
of full length, so that no time goes into sampling; each is trained on four times, and only steps that do not
begin a rollout batch count: forward and backward pass of the policy, loss, and AdamW.

    python workflow/benchmarks/against_trl.py --vocabulary 32000
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from statistics import median
from typing import Any

KINDS = ("trl", "clip", "troll")
PROMPT, ITERATIONS = 16, 4


def measure(kind: str, vocabulary: int, responses: int, tokens: int, batches: int) -> dict[str, float]:
    """Trains a random model; returns the median processor seconds of a step and the peak memory in GiB."""
    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from troll import TrustRegionConfig, TrustRegionTrainer

    words = {f"w{number}": number for number in range(vocabulary)}
    plain = Tokenizer(models.WordLevel(words, "w0"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="w0", pad_token="w0")
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    sizes = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=vocabulary, tie_word_embeddings=True, **sizes, **heads))
    seconds: list[float] = []

    class Timer(TrainerCallback):
        begun = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.begun = time.process_time()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if (state.global_step - 1) % ITERATIONS and state.global_step > ITERATIONS:
                seconds.append(time.process_time() - self.begun)

    base = GRPOTrainer if kind == "trl" else TrustRegionTrainer

    class Random(base):  # type: ignore[misc, valid-type]
        def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
            return torch.randint(1, vocabulary, (len(prompt_ids), tokens)).tolist(), None

    def reward(completion_ids: Any, **_: Any) -> list[float]:
        return [ids[0] / vocabulary for ids in completion_ids]

    options: dict[str, Any] = {
        "per_device_train_batch_size": responses,
        "steps_per_generation": 1,
        "num_generations": responses,
        "num_iterations": ITERATIONS,
        "max_completion_length": tokens,
        "max_steps": ITERATIONS * batches,
        "learning_rate": 1e-4,
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    prompts = [" ".join(f"w{1 + (row + place) % 99}" for place in range(PROMPT)) for row in range(64)]
    with tempfile.TemporaryDirectory() as directory:
        options["output_dir"] = directory
        args = GRPOConfig(**options) if kind == "trl" else TrustRegionConfig(**options, trust_region=kind)
        data = Dataset.from_dict({"prompt": prompts})
        given = {"train_dataset": data, "processing_class": tokenizer, "callbacks": [Timer()]}
        Random(model, reward, args, **given).train()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"processor_s": median(seconds), "peak_gib": peak}


def main() -> None:
    """Prints a Markdown table: medians over the processes, and ratios to TRL."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--vocabulary", type=int, default=32_000, help="its size")
    parser.add_argument("--responses", type=int, default=8, help="of a rollout batch")
    parser.add_argument("--tokens", type=int, default=64, help="of each response")
    parser.add_argument("--batches", type=int, default=2, help="rollout batches; the first does not count")
    parser.add_argument("--repeats", type=int, default=3, help="processes of each trainer")
    parser.add_argument("--worker", choices=KINDS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        sizes = (given.vocabulary, given.responses, given.tokens, given.batches)
        print(json.dumps(measure(given.worker, *sizes)))
        return
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for _ in range(given.repeats):
        for kind in KINDS:
            command = [sys.executable, __file__, *sys.argv[1:], "--worker", kind]
            environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            said = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
            found[kind].append(json.loads(said.stdout.splitlines()[-1]))
    print("| trainer | processor seconds a step | to TRL | peak memory (GiB) | to TRL |")
    print("| --- | ---: | ---: | ---: | ---: |")
    medians = {
        kind: [median(row[name] for row in rows) for name in ("processor_s", "peak_gib")]
        for kind, rows in found.items()
    }
    for kind, (seconds, peak) in medians.items():
        ratios = [value / base for value, base in zip((seconds, peak), medians["trl"], strict=True)]
        print(f"| {kind} | {seconds:.2f} | {ratios[0]:.2f} | {peak:.2f} | {ratios[1]:.2f} |")


if __name__ == "__main__":
    main()
