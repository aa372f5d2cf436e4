"""Low-rank adapters of pretrained models: supervised steps small enough to be kept with the source."""

import shlex
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from troll.common.adapters import CONFIG, FACTS, WEIGHTS, digest_of_tensors, merge_adapter
from troll.common.digests import digest_of_json, sha256_of_file
from troll.common.errors import UserError
from troll.common.files import by_umask, fresh_directory, write_json
from troll.common.hub import Snapshot, link
from troll.common.models import load_model
from troll.experiment.run_config import AdapterRecipe
from troll.tasks.registry import check_settings, get_task
from troll.training.base_model import circumstances
from troll.training.manifest import hardware, versions
from troll.training.prompts import load_policy_tokenizer
from troll.training.supervised import rows_of, train_supervised


def train_adapter(recipe: AdapterRecipe, model: Snapshot, out: Path) -> dict[str, Any]:
    """Trains a LoRA adapter on all linear layers but the head, and writes it to ``out`` in bfloat16.

    ``out`` gets PEFT's two files and, last, adapter.json: digests of the model, the adapter and the merged
    weights, the recipe, and the command. Returns the contents of adapter.json. If training is interrupted,
    its checkpoints stay beside ``out``, and the same command on the same machine resumes from the newest.
    """
    try:
        import peft
    except ImportError:
        raise UserError("peft is not installed, which trains adapters: pip install peft") from None
    task = get_task(recipe.task.name)
    supervised, settings = recipe.supervised, check_settings(task, recipe.task.settings)
    shown = task.demonstrate(supervised.steps * supervised.batch_size, recipe.seed, settings)
    what = f"adapter of {model.id} for {recipe.task.name}"
    with TemporaryDirectory() as directory:
        start = Path(directory, "start")
        start.mkdir()
        link(model, start)
        tokenizer, network = load_policy_tokenizer(start), load_model(start, dtype=torch.float32)
        rows = rows_of(tokenizer, shown, network.generation_config)
        model_digest, checkpoints = digest_of_tensors(_weights(model)), out.with_name(f".{out.name}.trainer")
        decides = {"recipe": recipe.model_dump(mode="json"), "model": model_digest, **circumstances()}
        torch.manual_seed(recipe.seed)
        lora = peft.LoraConfig(
            r=recipe.rank, lora_alpha=2 * recipe.rank, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        policy = peft.get_peft_model(network, lora)
        learnt = train_supervised(
            policy,
            tokenizer,
            rows,
            supervised,
            seed=recipe.seed,
            out=checkpoints,
            run_id=what,
            pretrained=True,
            identity=digest_of_json(decides),
        )
        with fresh_directory(out) as temporary:
            policy.peft_config["default"].base_model_name_or_path = model.id
            policy.to(torch.bfloat16).save_pretrained(str(temporary))
            (temporary / "README.md").unlink(missing_ok=True)  # PEFT's empty model card
            (temporary / WEIGHTS).chmod(by_umask(0o666))  # safetensors lets only the owner read it
            merged = Path(directory, "merged")
            merged.mkdir()
            merge_adapter(temporary, model.files, merged)
            facts = {
                "command": f"troll {shlex.join(sys.argv[1:])}",
                "recipe": recipe.model_dump(exclude_none=True),
                "model": dict(model.provenance),
                "model_weights_sha256": model_digest,
                "merged_weights_sha256": digest_of_tensors(merged.glob("*.safetensors")),
                "files": {name: sha256_of_file(temporary / name) for name in (CONFIG, WEIGHTS)},
                "versions": versions() | {"peft": peft.__version__},
                "hardware": hardware(),
                **learnt,
            }
            write_json(temporary / FACTS, facts)
    shutil.rmtree(checkpoints, ignore_errors=True)
    return facts


def _weights(model: Snapshot) -> list[Path]:
    return [path for name, path in model.files.items() if name.endswith(".safetensors")]
