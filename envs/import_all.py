"""Imports what the commands import, so that it is compiled once, when the environment is created.

Python does not keep compiled modules if PYTHONDONTWRITEBYTECODE is set, as in many containers; each process
would then compile the libraries again, which takes twenty seconds.
"""

import importlib
import sys
from contextlib import suppress

sys.dont_write_bytecode = False
sys.pycache_prefix = None

from troll.common.processor import quiet_libraries  # noqa: E402
from troll.warm.server import MODULES  # noqa: E402

quiet_libraries()
# The workflow, programs that graders start, and libraries of the tests.
OTHERS = (
    *("snakemake.cli", "troll.cli.app", "troll.operations.rehearsal.run"),
    *("snakemake.report.html_reporter", "snakemake.storage", "snakemake_executor_plugin_slurm", "smart_open"),
    *("docutils.parsers.rst", "troll.operations.invocation", "troll.operations.requests"),
    *("math_verify", "lm_eval", "evalplus.evaluate"),
    *("pytest", "hypothesis", "jsonschema"),
)
for name in dict.fromkeys([*OTHERS, *(name for names in MODULES.values() for name in names)]):
    with suppress(Exception):  # the vLLM environment lacks some; commands report what they miss
        importlib.import_module(name)
