"""Processor seconds of a rollout batch of a pretrained model, by part: sampling, scoring, update.

    python workflow/benchmarks/pretrained_batch.py workflow/config/smollm2-rates.yaml RUN_ID --work DIRECTORY

Trains the first batches of a run in DIRECTORY, and prints a table; each batch also as soon as it ends.
Processor seconds of one thread hardly change with what else runs on the machine. The variants of a
measurement are separate calls: options and the environment decide, such as ``--no-share-prompts`` and
``TROLL_PROCESSOR=avx2``.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from troll.cli.app import begin, main
from troll.cli.options import File
from troll.common.progress import say

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


class Parts:
    """Processor seconds by part; those of a call inside another count for the inner one alone."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inner = [0.0]

    def of(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function whose processor time counts for a part."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time()
            self._inner.append(0.0)
            try:
                return function(*args, **kwargs)
            finally:
                taken = time.process_time() - start
                self.seconds[name] += taken - self._inner.pop()
                self._inner[-1] += taken

        return timed


@app.command()
def measure(
    file: File,
    run_id: Annotated[str, typer.Argument(help="a run of the file")],
    work: Annotated[Path, typer.Option(help="directory for base model, problems and the run")],
    batches: Annotated[int, typer.Option(help="rollout batches; the first is not counted", min=2)] = 3,
    operations: Annotated[bool, typer.Option(help="also the largest operations of the last batch")] = False,
    share_prompts: Annotated[
        bool | None, typer.Option(help="in place of the file's training.share_prompts")
    ] = None,
) -> None:
    """Print the processor seconds of a rollout batch by part."""
    begin(None)
    from troll.experiment.experiment import resolve, resolve_base
    from troll.experiment.files import read_experiment
    from troll.tasks.registry import write_problems

    experiment = read_experiment(file)
    run = experiment.run(run_id)
    config, base = resolve(experiment, run), resolve_base(experiment, run.model, run.task)
    settings: dict[str, Any] = {"rollout_batches": batches, "validate_every": 0, "checkpoint_every": batches}
    settings |= {} if share_prompts is None else {"share_prompts": share_prompts}
    config = config.model_copy(update={"training": config.training.model_copy(update=settings)})
    task = config.task.model_dump()
    if not (work / "data/train.jsonl").exists():
        write_problems(task, work / "data")

    from troll.training.base_model import pretrained_base_model

    if not (work / "base/manifest.json").exists():
        pretrained_base_model(base, work / "base")

    parts = Parts()
    rows = _trained(config, work, parts, operations)
    print(json.dumps(rows, indent=1))


def _trained(config: Any, work: Path, parts: Parts, operations: bool) -> dict[str, Any]:
    import shutil

    import torch
    from transformers import TrainerCallback

    from troll.training import run as training
    from troll.training.trainer import TrustRegionTrainer

    taken: list[dict[str, float]] = []
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    last = config.training.rollout_batches - 1

    class Watch(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 0:
                trainer = made[0]
                trainer.optimizer.step = parts.of("optimiser", trainer.optimizer.step)
            if state.global_step % config.training.steps_per_batch == 0:
                number = state.global_step // config.training.steps_per_batch
                self.start = time.process_time()
                parts.seconds.clear()
                if operations and number == last:
                    profiler.start()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % config.training.steps_per_batch == 0:
                total = time.process_time() - self.start
                other = total - sum(parts.seconds.values())
                taken.append({**parts.seconds, "other": other, "total": total})
                say(f"batch {len(taken)}: {json.dumps(taken[-1])}")

    made: list[Any] = []

    def measured(model: Any, *args: Any, **kwargs: Any) -> Any:
        trainer: Any = TrustRegionTrainer(model, *args, **kwargs)
        model.generate = parts.of("sampling", model.generate)
        made.append(trainer)
        trainer.old_policy.score = parts.of("scoring", trainer.old_policy.score)
        trainer.compute_loss = parts.of("forward", trainer.compute_loss)
        trainer.accelerator.backward = parts.of("backward", trainer.accelerator.backward)
        trainer.add_callback(Watch())
        return trainer

    vars(training)["TrustRegionTrainer"] = measured
    out = work / "run"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    training.train_run(config, work / "base/checkpoint", work / "data", out)
    if operations:
        profiler.stop()
        print(
            profiler.key_averages().table(
                sort_by="self_cpu_time_total", row_limit=30, max_name_column_width=50
            )
        )
    return {"capability": torch.backends.cpu.get_cpu_capability(), "batches": taken}


if __name__ == "__main__":
    main(app)
