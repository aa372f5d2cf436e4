"""Runs evalplus' own checks inside the sandbox: one JSON line per sample on the standard output.

The process that evalplus starts for each program confines itself first, so that it can neither multiply
nor kill the evaluator; the rest is evalplus as it is. Standard library and evalplus only; started by
``evalplus_check.py`` as a script. Input is a JSON file: ``{"dataset", "problems": {task_id: record},
"samples": [[task_id, source]], "indices": [index]}``.
"""

import gc
import json
import os
import sys
from typing import Any

import evalplus.eval
from evalplus.gen.util import trusted_exec

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - keep the start short

import syscall_filter  # type: ignore[import-not-found]

_unconfined = evalplus.eval.unsafe_execute


def _confined(*arguments: Any) -> None:
    syscall_filter.confine()
    _unconfined(*arguments)


def _references(dataset: str, problem: dict[str, Any]) -> dict[str, Any]:
    """Expected outputs and times of base and plus, as evalplus computes them; also decodes MBPP's inputs."""
    not_none = False
    if dataset == "mbpp":
        from evalplus.data.mbpp import mbpp_deserialize_inputs
        from evalplus.eval._special_oracle import MBPP_OUTPUT_NOT_NONE_TASKS

        not_none = problem["entry_point"] in MBPP_OUTPUT_NOT_NONE_TASKS
        for kind in ("base_input", "plus_input"):
            problem[kind] = mbpp_deserialize_inputs(problem["task_id"], problem[kind])
    source = problem["prompt"] + problem["canonical_solution"]
    return {
        kind: trusted_exec(
            source,
            problem[f"{kind}_input"],
            problem["entry_point"],
            record_time=True,
            output_not_none=not_none,
        )
        for kind in ("base", "plus")
    }


def main() -> None:
    """Checks all samples of the job file."""
    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123 - keep the start short
        job = json.load(file)
    report = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    evalplus.eval.unsafe_execute = _confined
    gc.freeze()
    print(json.dumps({"ready": True}), file=report, flush=True)
    current, references = "", {}
    for index in job["indices"]:
        task_id, source = job["samples"][index]
        problem, verdict = job["problems"][task_id], {"index": index, "base": False, "plus": False}
        if task_id != current:
            current, references = task_id, _references(job["dataset"], problem)
        for kind in ("base", "plus"):
            outputs, times = references[kind]
            status, _ = evalplus.eval.untrusted_check(
                job["dataset"],
                source,
                problem[f"{kind}_input"],
                problem["entry_point"],
                expected=outputs,
                atol=problem["atol"],
                ref_time=times,
                fast_check=True,
            )
            verdict[kind] = status == "pass"
            if not verdict[kind]:
                break  # plus counts only where base passed
        print(json.dumps(verdict), file=report, flush=True)


main()
