"""FSDP2 part by part on gloo, which accelerate does not run on a CPU; called by two_processes.py.

Every process holds a half of each weight. What the sparse head, the critic and saving give must be what the
whole model gives.
"""

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from troll.algorithms.distributions import SparseLogProbs
from troll.training.critic import ValueModel
from troll.training.head import add_sparse_lm_head

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=False)


def shard(model, layers):
    """Layers, then the rest: as accelerate wraps a model."""
    mesh = init_device_mesh("cpu", (2,))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def apart(ours, theirs):
    """Largest difference between two mappings of tensors."""
    assert ours.keys() == theirs.keys()
    return max((ours[name] - theirs[name]).abs().max().item() for name in ours)


def gradients(model):
    found = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        found[name] = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient.clone()
    return found


def head_outputs(model, ids):
    mask = torch.ones(2, 8)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mask": mask, "sparse_lm_head": True}
    with torch.no_grad():
        chosen = model(**inputs, support_size=16, dropped_mass=0.0)
    output = model(**inputs, support=SparseLogProbs.from_batch(chosen).token_ids)
    (output.log_probs.sum() + output.support_log_probs.exp().square().sum()).backward()
    return {
        "log_probs": output.log_probs.detach(),
        "entropy": output.entropy.detach(),
        "mass": output.support_log_probs.detach().exp(),
        "tail": output.tail_log_prob.detach().exp(),
    }


def value_outputs(critic, ids):
    values = critic(ids, torch.ones_like(ids), 8)
    (values - 1).square().sum().backward()
    return {"values": values.detach()}


def compare(base):
    """Largest differences between a sharded model and a whole one, by part."""
    ids = torch.arange(5, 45).view(2, 20)
    whole, parts = (AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32) for _ in range(2))
    found = {}
    # The critic first: it copies the backbone of a policy that is not sharded yet.
    torch.manual_seed(0)
    critics = [ValueModel(whole), ValueModel(parts)]
    for critic in critics:
        torch.nn.init.ones_(critic.head.weight)
    for model in (whole, parts):
        add_sparse_lm_head(model, 0.9)
    shard(parts, parts.model.layers)
    shard(critics[1], critics[1].backbone.layers)
    assert all(isinstance(parameter, DTensor) for parameter in parts.parameters())
    for name, outputs, models in (
        ("head", head_outputs, (whole, parts)),
        ("critic", value_outputs, critics),
    ):
        found[name] = apart(*(outputs(model, ids) for model in models))
        found[f"{name}_gradients"] = apart(*(gradients(model) for model in models))
        for model in models:
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
            optimizer.step()
        states = [get_model_state_dict(model, options=WHOLE) for model in models]
        found[f"{name}_saved"] = apart(*states)
    return found
