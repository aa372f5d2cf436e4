# A named group of an experiment's runs: `snakemake GROUP` runs them and makes their tables and verdicts, whatever
# else the experiment holds.

GROUP = f"{ROOT}/groups/{{group}}"


rule collect_group:
    input:
        lambda wildcards: files_of(GROUPS[wildcards.group]),
    output:
        runs=f"{GROUP}/runs.parquet",
        problems=f"{GROUP}/items.parquet",
        plan=f"{GROUP}/plan.json",
    log:
        f"{ROOT}/logs/groups/{{group}}/collect.log",
    wildcard_constraints:
        group=one_of(GROUPS),
    conda:
        "../../envs/analyse.yaml"
    params:
        directories=lambda wildcards: [
            f"{ROOT}/{place}" for place in places_of(GROUPS[wildcards.group])
        ],
        out=lambda wildcards, output: os.path.dirname(output.runs),
        expected=lambda wildcards: as_json(
            [{**vars(run)} for run in EXPERIMENT.groups()[wildcards.group]]
        ),
        skipped=as_json(SKIPPED),
        mixed="--allow-mixed" if EXPERIMENT.allow_mixed else "",
    message:
        "collect {output.runs}"
    shell:
        "troll --log {log:q} collect {params.directories:q} --out {params.out:q} {params.mixed}"
        " --expected {params.expected:q} --skipped {params.skipped:q}"


rule group_table:
    input:
        runs=rules.collect_group.output.runs,
        problems=rules.collect_group.output.problems,
        plan=rules.collect_group.output.plan,
    output:
        f"{GROUP}/tables/{{name}}.html",
        multiext(f"{GROUP}/tables/{{name}}", ".csv", ".md", ".tex"),
    log:
        f"{ROOT}/logs/groups/{{group}}/{{name}}.log",
    wildcard_constraints:
        group=one_of(GROUPS),
        name=r"[a-z_]+",
    conda:
        "../../envs/analyse.yaml"
    params:
        stem=lambda wildcards, output: os.path.splitext(output[0])[0],
        results=lambda wildcards, input: os.path.dirname(input.runs),
    message:
        "table {wildcards.name} of {wildcards.group}"
    shell:
        "troll --log {log:q} table {wildcards.name:q} --results {params.results:q} --out {params.stem:q}"


rule group_claims:
    input:
        runs=rules.collect_group.output.runs,
        problems=rules.collect_group.output.problems,
        plan=rules.collect_group.output.plan,
        ledger=EXPERIMENT.claims,
    output:
        f"{GROUP}/claims.md",
        f"{GROUP}/claims.json",
    log:
        f"{ROOT}/logs/groups/{{group}}/claims.log",
    wildcard_constraints:
        group=one_of(GROUPS),
    conda:
        "../../envs/analyse.yaml"
    params:
        stem=lambda wildcards, output: os.path.splitext(output[0])[0],
        results=lambda wildcards, input: os.path.dirname(input.runs),
    message:
        "claims of {wildcards.group}"
    shell:
        "troll --log {log:q} claims {input.ledger:q} --results {params.results:q} --out {params.stem:q}"


for _group in GROUPS:

    rule:
        name:
            _group
        input:
            f"{ROOT}/groups/{_group}/claims.md",
            [
                f"{ROOT}/groups/{_group}/tables/{name}.html"
                for name in group_tables(_group)
            ],
