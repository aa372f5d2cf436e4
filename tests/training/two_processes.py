"""Trains on two processes and says what each of them ended with; run by test_processes.py."""

import json
import os
import sys

import torch
import torch.distributed as dist
from datasets import Dataset
from trainer_cases import PROMPTS, digits
from transformers import AutoModelForCausalLM
from trl import GRPOConfig

from troll.settings import Critic, DynamicSampling, Overlong, Regulariser
from troll.training.tokenizer import load_tokenizer
from troll.training.trainer import TrustRegionTrainer

METHODS = {
    "ppo": {
        "estimator": "gae",
        "critic": Critic(learning_rate=1e-3, warmup_steps=2),
        "regulariser": Regulariser(place="reward", coefficient=0.1, target=0.01, horizon=100),
    },
    "dapo": {
        "estimator": "remax",
        "dynamic_sampling": DynamicSampling(),
        "overlong": Overlong(buffer=5),
    },
}


def trainer(base, out, method):
    arguments = GRPOConfig(
        output_dir=out,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
        num_generations=4,
        max_completion_length=10,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        max_steps=8,  # one epoch: going on after it trains no further
        beta=0.0,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        report_to="none",
        logging_steps=1,
        save_steps=2,
        disable_tqdm=True,
        seed=11,
    )
    return TrustRegionTrainer(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
        digits,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS * 8}),
        processing_class=load_tokenizer(base),
        trust_region="troll",
        **METHODS[method],
    )


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def differs(values):
    """Largest difference of a tensor between the processes."""
    found = [torch.zeros_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(found, values)
    return (found[0] - found[1]).abs().max().item()


def main(base, out, method):
    trained = trainer(base, out, method)
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
        resumed = trainer(base, out, method)
        resumed.train(resume_from_checkpoint=f"{out}/checkpoint-8")
        result["restored"] = torch.equal(flat(resumed.critic.model), flat(trained.critic.model))
    if dist.get_rank() == 0:
        print("RESULT " + json.dumps(result), flush=True)
    dist.barrier()
    # gloo's threads and DDP's destructors now and then wait for each other at a normal exit.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
