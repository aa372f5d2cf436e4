"""Imports what the commands import, so that it is compiled once, when the environment is made.

Python compiles a module when it is first imported and keeps the result, but not where it is told to keep none
(PYTHONDONTWRITEBYTECODE, as in many containers): each process would compile the libraries anew then, which
takes it twenty seconds.
"""

import importlib
import sys
from contextlib import suppress

sys.dont_write_bytecode = False
sys.pycache_prefix = None

from troll.common.processor import quiet_libraries  # noqa: E402
from troll.warm.server import MODULES  # noqa: E402

quiet_libraries()
# The workflow itself, what graders start beside the commands, and what tests use.
OTHERS = (
    *("snakemake.cli", "troll.cli.app", "troll.operations.rehearsal.run"),
    *("snakemake.report.html_reporter", "snakemake.storage", "snakemake_executor_plugin_slurm", "smart_open"),
    *("docutils.parsers.rst", "troll.operations.invocation", "troll.operations.requests"),
    *("math_verify", "lm_eval", "evalplus.evaluate"),
    *("pytest", "hypothesis", "jsonschema"),
)
for name in dict.fromkeys([*OTHERS, *(name for names in MODULES.values() for name in names)]):
    with suppress(Exception):  # an environment for vLLM lacks some; what is missing is said by what needs it
        importlib.import_module(name)
