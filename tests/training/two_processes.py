"""Trains on two processes and says what each of them ended with; run by test_processes.py."""

import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

import sharded
import torch
import torch.distributed as dist
from datasets import Dataset
from trainer_cases import PROMPTS, completion_text, configured, digits
from transformers import AutoModelForCausalLM

from troll.common.seeding import derive_seed
from troll.experiment.files import read_run_file
from troll.experiment.settings import Critic, DynamicSampling, Overlong, Regulariser
from troll.training.prompts import prompt_of
from troll.training.run import train_run
from troll.training.tokenizer import load_tokenizer
from troll.training.trainer import TrustRegionTrainer

METHODS = {
    "ppo": {
        "estimator": "gae",
        "critic": Critic(learning_rate=1e-3, warmup_steps=2),
        "regulariser": Regulariser(applied_to="reward", coefficient=0.1, target=0.01, horizon=100),
    },
    "dapo": {
        "estimator": "remax",
        "dynamic_sampling": DynamicSampling(),
        "overlong": Overlong(buffer=5),
    },
}
# What one process and two of them have to learn alike.
ALIKE = {
    "clip": {"trust_region": "clip", "estimator": "grpo"},
    "troll": {"trust_region": "troll", "estimator": "grpo", "trust_region_settings": {"kl_bound": 1e-4}},
    "budget": {"trust_region": "troll", "estimator": "grpo", "micro_batch_tokens": 40},
    "shared prompts": {"trust_region": "troll", "estimator": "grpo", "share_prompts": True},
    "whole step": {
        "trust_region": "m2po",
        "trust_region_settings": {"threshold": 1e-6},
        "estimator": "grpo",
        "micro_batch_tokens": 60,
    },
    "lag": {
        "trust_region": "troll",
        "estimator": "grpo",
        "policy_lag": 1,
        "trust_region_anchor": "sampler",
    },
    "gae": {
        "trust_region": "troll",
        "estimator": "gae",
        "critic": Critic(learning_rate=1e-3),
        "micro_batch_tokens": 40,
    },
}


class FixedRollouts(TrustRegionTrainer):
    """Responses that depend on prompt, place in the group and rollout batch, and not on who samples them."""

    def _generate_single_turn(self, prompt_ids, *_, **__):
        end, length = self.processing_class.eos_token_id, self.max_completion_length
        first = self.accelerator.process_index * len(prompt_ids)
        responses = []
        for row, prompt in enumerate(prompt_ids, start=first):
            place = {"prompt": " ".join(map(str, prompt)), "row": row % self.num_generations}
            seed = derive_seed(**place, batch=self.rollout_batch)
            stream = torch.Generator().manual_seed(seed)
            tokens = torch.randint(10, 300, (length,), generator=stream).tolist()
            stop = int(torch.randint(2, length + 1, (1,), generator=stream))
            responses.append(tokens if stop == length else [*tokens[:stop], end])
        return responses, None


def reward(completions, **rest):
    return digits([completion_text(completion) for completion in completions], **rest)


def trainer(kind, base, out, config, reward=reward, **method):
    """A trainer on the model at ``base``; prompts are chats where its tokenizer has a template for them."""
    tokenizer = load_tokenizer(base)
    arguments = {
        "output_dir": str(out),
        "num_generations": 4,
        "max_completion_length": 10,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "report_to": "none",
        "logging_steps": 1,
        "disable_tqdm": True,
        "seed": 11,
    } | config
    return configured(
        kind,
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        reward,
        arguments,
        method,
        train_dataset=Dataset.from_dict({"prompt": [prompt_of(tokenizer, text) for text in PROMPTS * 8]}),
        processing_class=tokenizer,
    )


def train_alike(base, out, name, processes):
    """Nine steps on three rollout batches of eight responses; the log and the checkpoint at the end."""
    # A batch is one step: TRL shuffles it within each process, which changes what mini-batches hold.
    config = {"per_device_train_batch_size": 8 // processes, "steps_per_generation": 1, "num_iterations": 3}
    trained = trainer(FixedRollouts, base, out, config | {"max_steps": 9, "save_steps": 9}, **ALIKE[name])
    scored = torch.zeros(1)

    def count(*_):
        scored.add_(not torch.is_grad_enabled())

    for model in (trained.model, *([trained.critic.model] if trained.critic is not None else [])):
        model.register_forward_pre_hook(count)
    trained.train()
    return {
        "rows": [row for row in trained.state.log_history if "loss" in row],
        "constraint_check": trained.constraint_check.summary(),
        "scored": int(scored),
        "scored_differs": differs(scored) if processes > 1 else 0.0,
    }


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def differs(values):
    """Largest difference of a tensor between the processes."""
    found = [torch.zeros_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(found, values)
    return (found[0] - found[1]).abs().max().item()


def train_method(base, out, name):
    config = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 4,
        "max_steps": 8,
        "save_steps": 5,  # inside of a rollout batch
    }
    settings = METHODS[name] | {"trust_region": "troll"}
    trained = trainer(TrustRegionTrainer, base, out, config, **settings)
    start = flat(trained.model).clone()
    trained.train()
    result = {
        "processes": dist.get_world_size(),
        "moved": (flat(trained.model) - start).abs().max().item(),
        "policy_differs": differs(flat(trained.model)),
        "generated": trained.generated_samples,
    }
    if trained.critic is not None:
        result |= {
            "wrapped": type(trained.critic.model).__name__,
            "critic_differs": differs(flat(trained.critic.model)),
        }
    dist.barrier()  # the main process may still be writing what the other one is about to read
    resumed = trainer(TrustRegionTrainer, base, out, config, **settings)
    resumed.train(resume_from_checkpoint=f"{out}/checkpoint-5")
    models = [(resumed.model, trained.model)]
    models += [(resumed.critic.model, trained.critic.model)] if trained.critic is not None else []
    same = [torch.equal(flat(ours), flat(theirs)) for ours, theirs in models]
    result["restored"] = all(same) and resumed.method_state() == trained.method_state()
    return result


def validate(base, out):
    """Mean reward of seven rows, which do not divide between processes, in batches of three."""
    prompts = [prompt_of(load_tokenizer(base), str(number)) for number in range(7)]
    rows = [{"prompt": prompt, "task_id": number} for number, prompt in enumerate(prompts)]
    settings = {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 3}
    validating = trainer(TrustRegionTrainer, base, out, settings, trust_region="troll")
    return validating.greedy_success(rows, lambda task_id, **_: [2.0**number for number in task_id])[1]


def compared(base, out, data):
    """In each of the processes; the first of them says what was found."""
    found = {name: train_method(base, out / name, name) for name in METHODS}
    found |= {name: train_alike(base, out / name, name, 2) for name in ALIKE}
    for name in ("run", "stopped"):
        directory = out / name
        train_run(read_run_file(directory / "run.yaml"), base, data, directory, data / "suites")
    found["greedy"] = validate(base, out / "validate")
    found["sharded"] = sharded.compare(base)
    if dist.get_rank() == 0:
        print("RESULT " + json.dumps(found), flush=True)
    dist.barrier()


def forked(rank, port, work):
    """A process of two, as torchrun starts them, but with what this one has imported."""
    process = os.fork()
    if process:
        return process
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    status = 1
    try:
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # gloo's threads and DDP's destructors now and then wait for each other at a normal exit.
        os._exit(status)


def main(base, out, data):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = {forked(rank, port, lambda: compared(base, out, data)) for rank in range(2)}
    while processes:
        process, status = os.wait()
        processes.remove(process)
        if status:  # the other one waits for it
            for other in processes:
                os.kill(other, signal.SIGKILL)
            sys.exit(1)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
