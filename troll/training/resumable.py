"""What of a trust region's trainer goes into checkpoints, and comes back."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer

from troll.algorithms.advantages import Estimator
from troll.algorithms.trust_regions import ConstraintCheck, TrustRegion
from troll.training.critic import Critic
from troll.training.policy_lag import PolicyLag
from troll.training.reference_kl import ReferenceKL


class ResumableTrainer(GRPOTrainer):
    """TRL's trainer with the state of a method: `TrustRegionTrainer` sets the parts."""

    trust_region: TrustRegion
    estimator: Estimator | None
    constraint_check: ConstraintCheck
    reference_kl: ReferenceKL | None
    policy_lag: PolicyLag
    critic: Critic | None
    generated_samples: int

    def _stateful(self) -> dict[str, Any]:
        parts = {
            "trust_region": self.trust_region,
            "estimator": self.estimator,
            "constraint_check": self.constraint_check,
            "controller": self.reference_kl,
        }
        return {name: part for name, part in parts.items() if part is not None}

    def method_state(self) -> dict[str, Any]:
        """What a resumed run needs beside model, optimiser and scheduler; plain data."""
        states = {name: part.state_dict() for name, part in self._stateful().items()}
        return states | {"generated_samples": self.generated_samples}

    def load_method_state(self, state: Mapping[str, Any]) -> None:
        """Takes up what `method_state` gave."""
        for name, part in self._stateful().items():
            part.load_state_dict(state[name])
        self.generated_samples = state["generated_samples"]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        directory = Path(self._get_output_dir(trial=trial)) / name
        try:
            super()._save_checkpoint(model, trial)
            self.policy_lag.save(directory)
            if self.critic is not None:
                self.critic.save(directory)
        except Exception:
            if self.accelerator.is_main_process:
                shutil.rmtree(directory, ignore_errors=True)  # gives the space back that may have run out
            raise
        self.accelerator.wait_for_everyone()  # whoever marks it complete must see all files

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, checkpoint: Any) -> Any:
        prepared = super()._prepare_for_training(max_steps, train_dataloader, checkpoint)
        if checkpoint is not None:
            self.policy_lag.load(Path(checkpoint))
        if self.critic is not None:
            self.critic.prepare()
            if checkpoint is not None:
                self.critic.load(Path(checkpoint))
        return prepared
