"""Training of one run, from its run.yaml to checkpoint, metrics and manifest."""

import importlib.util
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from datasets import Dataset

from troll.algorithms.advantages import ESTIMATORS
from troll.common.digests import digest_of_json, facts_of
from troll.common.errors import NOT_FINITE, NotFinite, UserError
from troll.common.files import write_json
from troll.common.gpus import without_cudnn_attention
from troll.common.models import check_checkpoint, in_bfloat16, load_model, precision_beside
from troll.common.progress import say
from troll.common.seeding import derive_seed
from troll.experiment.run_config import RunConfig
from troll.experiment.settings import PolicyUpdate, Vllm
from troll.tasks.prompts import template_arguments
from troll.tasks.registry import get_task
from troll.tasks.responses import begins_thought, judged_text, response_texts
from troll.tasks.types import Problem, Task
from troll.tasks.verifiers.fractions import SCORED
from troll.training.callbacks import MetricsCallback, ProgressCallback, StopOnSignal
from troll.training.checkpoints import CheckpointCallback, expect_tied_weights
from troll.training.config import TrustRegionConfig
from troll.training.held_out import HeldOutCallback, HeldOutSet
from troll.training.manifest import manifest_of
from troll.training.outputs import save_model, whole_state
from troll.training.prompts import (
    load_policy_tokenizer,
    prompt_of,
    read_problems,
)
from troll.training.supervised import rows_of
from troll.training.tracking import TrackingCallback
from troll.training.trainer import TrustRegionTrainer
from troll.training.user_functions import Reward, answer_of, load_environment, load_reward, load_tools

PRETRAINING_ROWS = 2000


def trainer_config(config: RunConfig, out: Path, *, bfloat16: bool = False) -> TrustRegionConfig:
    """The trainer's configuration for a run.

    Args:
        config: the run.
        out: directory of its checkpoints.
        bfloat16: whether mixed precision is also used on a CPU (`troll.training.precision`).
    """
    training, seed = config.training, config.seeds.training
    rule, estimator = config.trust_region, config.estimator
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    responses = training.prompts_per_batch * training.responses_per_prompt
    per_step = responses // training.mini_batches // processes
    update = {name: getattr(training, name) for name in PolicyUpdate.model_fields}
    if not ESTIMATORS[estimator.rule].needs_values:
        update["critic"] = None  # an experiment may set a critic for all its runs
    if training.long_prompts == "omit":
        update["max_prompt_tokens"] = None
    validates = bool(training.validate_every and config.task.validation)
    arguments = TrustRegionConfig(
        trust_region=rule.rule,
        trust_region_settings=rule.settings,
        estimator=estimator.rule,
        estimator_settings=estimator.settings,
        **update,
        output_dir=str(out),
        seed=seed,
        data_seed=seed,
        max_steps=training.steps,
        per_device_train_batch_size=per_step // training.micro_batches,
        gradient_accumulation_steps=training.micro_batches,
        steps_per_generation=training.mini_batches * training.micro_batches,
        num_iterations=training.num_iterations,
        # TRL rejects groups of one, which are valid with a critic; the actual number is set below.
        num_generations=training.responses_per_prompt if training.responses_per_prompt > 1 else responses,
        max_completion_length=training.max_response_tokens,
        max_tool_calling_iterations=training.tool_turns,
        temperature=training.temperature,
        top_p=1.0,
        top_k=0,
        learning_rate=training.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=training.weight_decay,
        max_grad_norm=training.gradient_clipping,
        logging_steps=1,
        save_strategy="steps",
        save_steps=training.checkpoint_every * training.steps_per_batch,
        eval_strategy="steps" if validates else "no",
        eval_steps=max(1, training.validate_every) * training.steps_per_batch,
        eval_on_start=validates,
        eval_loss=False,
        num_generations_eval=1,
        per_device_eval_batch_size=max(1, responses // processes),
        gradient_checkpointing=training.gradient_checkpointing and torch.cuda.is_available(),
        bf16=training.mixed_precision and (bfloat16 or torch.cuda.is_available()),
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=False,
        chat_template_kwargs=template_arguments(config.thinking),
        report_to="none",
        disable_tqdm=True,
        **vllm_options(training.vllm, training.longest_sequence),
    )
    arguments.num_generations = training.responses_per_prompt
    return arguments


def even_batch(rows: int, largest: int, processes: int) -> int:
    """Rows in a batch of each process, so that batches are about equally large and at most ``largest``.

    accelerate fills up the last batches of all processes with rows that it repeats: with small batches fewer
    rows are generated, and counted, again.
    """
    batches = -(-rows // (largest * processes))
    return -(-rows // (batches * processes)) if rows else largest


def vllm_options(vllm: Vllm | None, longest: int | None = None) -> dict[str, Any]:
    """TRL's options for rollouts by vLLM; rejects a machine without vLLM or a GPU.

    vLLM reserves its cache for sequences of ``longest`` tokens; None: for the model's whole context.
    """
    if vllm is None:
        return {}
    if importlib.util.find_spec("vllm") is None:
        raise UserError(
            "training.vllm: vllm is not installed here; `make vllm` installs it, or leave training.vllm out"
        )
    if not torch.cuda.is_available():
        raise UserError(
            "training.vllm: no GPU that torch sees, and vLLM on a CPU cannot load the updated weights of a "
            "policy; leave training.vllm out"
        )
    corrected = vllm.correction != "none"
    options = {
        "use_vllm": True,
        "vllm_mode": vllm.mode,
        "vllm_server_base_url": vllm.server,
        "vllm_enable_sleep_mode": vllm.mode == "colocate" and vllm.sleep,
        "vllm_gpu_memory_utilization": vllm.memory,
        "vllm_tensor_parallel_size": vllm.tensor_parallel,
        "vllm_max_model_length": longest,
        "vllm_importance_sampling_correction": corrected,
        "vllm_importance_sampling_clip_max": vllm.correction_max,
    }
    mode = {"vllm_importance_sampling_mode": vllm.correction.replace("-", "_")} if corrected else {}
    return options | mode


def reward_function(
    task: Task,
    problems: Mapping[str, Problem],
    tokenizer: Any,
    *,
    partial: bool = False,
    rehearsal: bool = False,
    thinking: str = "off",
    own: Reward | None = None,
    turns: bool = False,
) -> Any:
    """The task's verifier as a reward function of TRL; ``problems`` are keyed by ``task_id``.

    It reads the token ids of responses, as evaluation does (`troll.tasks.responses.judged_text`), and not
    TRL's messages, which lack what a response template takes for thoughts or calls of tools. With ``partial``
    credit, the share of responses whose reward is 1 is logged as well, as ``success``. In a rehearsal the
    verifier is called, but `coin` determines the reward: random models never succeed, so every gradient would
    be zero otherwise. ``own`` is a reward in place of the verifier's, which is then only logged. With
    ``turns``, responses may call tools, and the last turn is judged.
    """
    in_thought = begins_thought(tokenizer, thinking=thinking)

    def success(
        completion_ids: Sequence[Sequence[int]],
        task_id: Sequence[str],
        completions: Any = (),
        log_metric: Any = None,
        **_: Any,
    ) -> list[float]:
        of_responses = [problems[name] for name in task_id]
        said = list(map(answer_of, completions)) if turns else response_texts(tokenizer, completion_ids)
        texts = [
            judged_text(text, problem.prompt, in_thought=in_thought and not turns)
            for text, problem in zip(said, of_responses, strict=True)
        ]
        verdicts = task.reward(of_responses, texts)
        rewards = verdicts if own is None else own(of_responses, texts)
        if rehearsal:
            rewards = verdicts = [coin(name, text) for name, text in zip(task_id, texts, strict=True)]
        if partial:
            log_metric("success", sum(verdict == 1.0 for verdict in verdicts) / len(verdicts))
        return rewards

    return success


def coin(task_id: str, response: str) -> float:
    """A pseudo-random reward, 0 or 1, determined by problem and response, so repeated runs agree."""
    return float(derive_seed(stream="rehearsal", task_id=task_id, response=response) % 2)


def _rows(problems: Sequence[Problem], tokenizer: Any) -> list[dict[str, Any]]:
    return [{"prompt": prompt_of(tokenizer, item), "task_id": item.task_id} for item in problems]


def _pretraining_rows(config: RunConfig, tokenizer: Any) -> Any:
    """The first demonstrations of the base model's training, if the pretraining loss needs them."""
    if config.training.pretraining is None:
        return None
    task = get_task(config.task.name)
    shown = task.demonstrate(PRETRAINING_ROWS, 0, config.task.settings)
    return rows_of(tokenizer, shown, thinking=config.thinking)


def _files(config: RunConfig, task: Task, data: Path, suites: Path | None) -> dict[str, tuple[Task, Path]]:
    """The files of problems that a run reads, by name of the split or data set, with their tasks."""
    splits = ("train", "validation") if config.task.validation else ("train",)
    files = {split: (task, data / f"{split}.jsonl") for split in splits}
    for name in config.validate_on:
        if suites is None:
            raise UserError(f"run {config.run_id}: validates on {name}; give the directory of its problems")
        files[name] = (get_task(name), suites / name / "test.jsonl")
    return files


def judged_as(settings: Mapping[str, Any], suite: Task, problems: Sequence[Problem]) -> list[Problem]:
    """Problems of a data set to validate on, whose answers are judged as leniently as those of the task.

    Those of mathematics whose own settings say nothing else; how they are asked stays as it is.
    """
    if suite.kind != "math" or settings.get("answers") != "lenient":
        return list(problems)
    return [replace(item, record={"answers": "lenient", **item.record}) for item in problems]


def _held_out(config: RunConfig, suite: Task, problems: Sequence[Problem], tokenizer: Any) -> HeldOutSet:
    problems = judged_as(config.task.settings, suite, problems)
    by_name = {item.task_id: item for item in problems}
    reward = reward_function(suite, by_name, tokenizer, rehearsal=config.rehearsal, thinking=config.thinking)
    partial = any(SCORED in item.record for item in problems)
    return HeldOutSet(_rows(problems, tokenizer), reward, partial)


def train_run(
    config: RunConfig,
    base: Path,
    data: Path,
    out: Path,
    suites: Path | None = None,
    tracking: str = "none",
    not_finite: Literal["stop", "zero"] = "stop",
) -> None:
    """Trains one run; resumes from its newest checkpoint after an interruption.

    Args:
        base: directory of the base model's checkpoint.
        data: directory with train.jsonl and validation.jsonl of the task.
        out: the run's directory, for metrics.jsonl, checkpoint/ and, written last, manifest.json.
        suites: directory with ``<name>/test.jsonl`` of the data sets in ``validate_on``, if there are any.
        tracking: additional tracker of the metrics, see `troll.training.tracking`.
        not_finite: handling of a loss that is not finite: ``stop`` raises; ``zero`` ends the run without a
            checkpoint and records `NOT_FINITE` in the manifest. With several processes it always raises.

    Raises:
        UserError: a file is missing or damaged, the loss is not finite, or the constraint check is breached.
        troll.common.errors.Stopped: a signal arrived (`troll.common.signals`); the state is saved.
    """
    training = config.training
    task = get_task(config.task.name)
    without_cudnn_attention()
    check_checkpoint(base)
    tokenizer = load_policy_tokenizer(base)
    files = _files(config, task, data, suites)
    problems, overlong, prompts = read_problems(
        files, tokenizer, training.max_prompt_tokens, config.thinking, cut=training.long_prompts == "cut"
    )
    train, validation = problems["train"], problems.get("validation", [])
    if len(train) < training.prompts_per_batch:
        raise UserError(
            f"run {config.run_id}: prompts_per_batch is {training.prompts_per_batch}, but task "
            f"{task.name} has {len(train)} train problems; raise tasks.{task.name}.train"
        )
    limited = config.model_copy(update={"training": training.within_epochs(len(train))})
    trainer_directory, precision = out / "trainer", precision_beside(base)
    own, tools = load_reward(training.reward), load_tools(training.tools, tokenizer)
    by_name = {item.task_id: item for item in (*train, *validation)}
    environment = load_environment(training.environment, by_name, tokenizer, reward=training.reward)
    turns = tools is not None or environment is not None
    if turns:
        called = "training.tools" if tools else "training.environment"
        say(f"[train] {config.run_id}: the evaluation samples single responses, without {called}")
    args = trainer_config(limited, trainer_directory, bfloat16=in_bfloat16(precision))
    if (processes := args.world_size) > 1:
        args.per_device_eval_batch_size = even_batch(
            len(validation), args.per_device_eval_batch_size, processes
        )
    gives_reward = environment is not None and environment.gives_reward
    if gives_reward:
        args.reward_weights = [float(config.rehearsal)]  # TRL adds get_reward with a weight of 1
    partial = own is not None or gives_reward or any(SCORED in item.record for item in train)
    trainer = TrustRegionTrainer(
        load_model(base, dtype=torch.float32),
        reward_function(
            task,
            by_name,
            tokenizer,
            partial=partial,
            rehearsal=config.rehearsal,
            thinking=config.thinking,
            own=own,
            turns=turns,
        ),
        args=args,
        train_dataset=Dataset.from_list(_rows(train, tokenizer)),
        eval_dataset=Dataset.from_list(_rows(validation, tokenizer)) if validation else None,
        processing_class=tokenizer,
        pretraining_rows=_pretraining_rows(config, tokenizer),
        tools=tools,
        environment_factory=environment,
    )
    metrics = MetricsCallback(out / "metrics.jsonl", training.steps_per_batch)
    checkpoints = CheckpointCallback(digest_of_json(config.model_dump()), metrics, training.checkpoints_kept)
    stop = StopOnSignal(config.run_id, training.steps_per_batch, trainer.accelerator)
    for callback in (
        metrics,
        checkpoints,
        stop,
        ProgressCallback(config.run_id, measure="reward", label="reward" if partial else "success"),
    ):
        trainer.add_callback(callback)
    if training.validate_every and config.validate_on:
        sets = {
            name: _held_out(config, files[name][0], problems[name], tokenizer) for name in config.validate_on
        }
        every = training.validate_every * training.steps_per_batch
        trainer.add_callback(HeldOutCallback(trainer, metrics, sets, every))
    if tracking != "none":
        trainer.add_callback(TrackingCallback(tracking, out / "metrics.jsonl", config))
    resume = checkpoints.newest(trainer_directory)
    if resume:
        expect_tied_weights(trainer.model)
        trainer.args.eval_on_start = False  # its result is in the metrics or pending in the checkpoint
    inputs = {"base_model": base} | {name: path for name, (_, path) in files.items()}
    try:
        trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    except NotFinite as error:
        if not_finite == "stop" or trainer.accelerator.num_processes > 1:
            raise
        step = trainer.state.global_step + 1
        say(f"[train] {config.run_id}: {error}; the run counts with a success of 0")
        metrics.stopped_at(step)
        shutil.rmtree(out / "checkpoint", ignore_errors=True)
        manifest = manifest_of(config, wall_s=metrics.wall_s, data=inputs, prompts=prompts)
        manifest |= {"started_at": metrics.started_at, NOT_FINITE: step}
        write_json(out / "manifest.json", manifest)
        shutil.rmtree(trainer_directory, ignore_errors=True)
        return
    stop.stop_if_asked()
    state = whole_state(trainer)
    if trainer.accelerator.is_main_process:
        model = trainer.accelerator.unwrap_model(trainer.model)
        save_model(model, tokenizer, out / "checkpoint", state)
        manifest = manifest_of(config, wall_s=metrics.wall_s, data=inputs, prompts=prompts) | precision
        manifest |= overlong if training.max_prompt_tokens is not None else {}
        manifest |= {"started_at": metrics.started_at, "constraint_check": trainer.constraint_check.summary()}
        write_json(out / "manifest.json", manifest | {"checkpoint": facts_of(out / "checkpoint")})
        shutil.rmtree(trainer_directory, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()  # the launcher ends all processes once one has ended
