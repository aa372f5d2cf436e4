"""Runs lm-eval on samples that exist already."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from troll.common.errors import UserError
from troll.evaluation.lm_eval.tasks.functions import NO_SAMPLE

TASKS = Path(__file__).parent / "tasks"


def replay(task: str, problems: Path, completions: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Evaluates recorded completions with lm-eval, as if a model had just written them.

    Args:
        task: name of a YAML task in ``tasks``.
        problems: the problems as JSON lines.
        completions: by task_id, for every problem in the file.

    Returns:
        lm-eval's metrics, for example ``pass@1``.

    Raises:
        UserError: lm-eval is not installed.
    """
    try:
        from lm_eval.api.model import LM
        from lm_eval.evaluator import evaluate
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise UserError(f"lm-eval: {error}; install it: pip install 'troll[evaluate]'") from None

    class Replay(LM):
        """A model that repeats what was recorded, in order."""

        def __init__(self) -> None:
            super().__init__()
            self._used: Counter[str] = Counter()

        def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
            return [self._next(request.doc["task_id"]) for request in requests]

        def _next(self, task_id: str) -> str:
            recorded, number = completions[task_id], self._used[task_id]
            self._used[task_id] += 1
            return recorded[number] if number < len(recorded) else NO_SAMPLE

        def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> Any:
            raise NotImplementedError("recorded samples have no likelihoods")

        def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> Any:
            raise NotImplementedError("recorded samples have no likelihoods")

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    manager = TaskManager(
        include_path=str(TASKS), include_defaults=False, metadata={"data_file": str(problems)}
    )
    loaded = manager.load([task])
    loaded["tasks"][task].set_config(key="repeats", value=max(map(len, completions.values())))
    # Not simple_evaluate, which does the same but collects facts of the environment for seconds.
    results = evaluate(lm=Replay(), task_dict=loaded, bootstrap_iters=0, log_samples=False)
    return {
        name.removesuffix(",all"): float(value)
        for name, value in results["results"][task].items()
        if name.endswith(",all") and not name.endswith("_stderr,all")
    }
