# From an experiment file to tables, figures and verdicts. Data goes one way; every arrow is one rule that calls one
# `troll` command. Run it with `snakemake --cores N`; another experiment with `--configfile FILE`.

from snakemake.utils import min_version

min_version("9.19")

if "experiment" not in config:

    configfile: "workflow/config/testbed.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/models.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/suites.smk"
include: "workflow/rules/analyse.smk"
include: "workflow/rules/groups.smk"


report: "workflow/report/workflow.rst"


rule all:
    default_target: True
    input:
        final_outputs(),


onsuccess:
    print(closing_words(), end="", file=sys.stderr)


onerror:
    print(
        f"what is done, and what failed: troll status {quote(str(_source))}",
        file=sys.stderr,
    )
