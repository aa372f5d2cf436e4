# Converts the experiment file to targets. The code behind it is in troll/operations, with types and tests.

import os
import sys
from pathlib import Path

from troll import warm
from troll.analysis.captions import write_captions
from troll.common.numerics import last_change
from troll.experiment.experiment import BASE
from troll.experiment.resources import COST, FIXED
from troll.operations.invocation import begin
from troll.operations.parameters import Parameters, environment_of, growing
from troll.operations.groups import groups_of
from troll.operations.places import one_of, task_of

INVOCATION = begin(workflow, config)
TARGETS, PUBLIC = INVOCATION.targets, INVOCATION.public
EXPERIMENT, ROOT = TARGETS.experiment, TARGETS.root
PARAMETERS = Parameters(TARGETS)
TRAINING_ENVIRONMENT, TRAINING_PROGRAM = environment_of(
    TARGETS.trains_with_vllm, deployed=INVOCATION.deployed
)
SAMPLING_ENVIRONMENT, SAMPLING_PROGRAM = environment_of(
    TARGETS.samples_with_vllm, deployed=INVOCATION.deployed
)
CAPTIONS = write_captions(Path(".snakemake/captions").absolute())

shell.prefix(INVOCATION.shell_prefix())


onstart:
    INVOCATION.begin_jobs(shell.prefix, warm.shell_prefix)


INVOCATION.begin_jobs_of_a_module(shell.prefix, warm.shell_prefix)


wildcard_constraints:
    model=r"[^/]+",
    task=r"[^/]+",
    trust_region=r"[^/]+",
    estimator=r"[^/]+",
    condition=r"[^/]+",
    seed=r"\d+",
    checkpoint_dir=r"(runs|base)/.+",
