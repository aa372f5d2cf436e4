# A named group of an experiment's runs: `snakemake GROUP` runs them and makes their tables, figures, verdicts and page,
# whatever else the experiment holds.

GROUP = f"{ROOT}/groups/{{group}}"


rule collect_group:
    input:
        lambda wildcards: TARGETS.files_of(TARGETS.runs_of_group(wildcards)),
    output:
        plan=f"{GROUP}/plan.json",
        tidy=f"{GROUP}/tidy/all.parquet",
    log:
        f"{ROOT}/logs/groups/{{group}}/collect.log",
    wildcard_constraints:
        group=one_of(TARGETS.groups),
    localrule: True
    conda:
        "../../envs/analyse.yaml"
    params:
        directories=lambda wildcards: TARGETS.directories(
            TARGETS.groups[wildcards.group]
        ),
        out=lambda wildcards, output: os.path.dirname(output.plan),
        planned=lambda wildcards: TARGETS.plan_of(EXPERIMENT.groups()[wildcards.group]),
        options=TARGETS.collect_options,
    message:
        "collect {params.out}"
    shell:
        "printf %s {params.planned:q} | troll --log {log:q} collect {params.directories:q} --out {params.out:q}"
        " {params.options} --plan -"


rule group_table:
    input:
        plan=rules.collect_group.output.plan,
    output:
        multiext(f"{GROUP}/tables/{{name}}", ".csv", ".md"),
    log:
        f"{ROOT}/logs/groups/{{group}}/table/{{name}}.log",
    wildcard_constraints:
        group=one_of(TARGETS.groups),
        name=r"[a-z_]+",
    localrule: True
    conda:
        "../../envs/analyse.yaml"
    params:
        stem=lambda wildcards, output: os.path.splitext(output[0])[0],
        results=lambda wildcards, input: os.path.dirname(input.plan),
    message:
        "table {wildcards.name} of {wildcards.group}"
    shell:
        "troll --log {log:q} table {wildcards.name:q} --results {params.results:q} --out {params.stem:q}"


for _entry in entries_of("figure", EXPERIMENT, EXPERIMENT.runs()):
    _stem = f"{_entry.name}_{{task}}" if _entry.per_task else _entry.name

    rule:
        name:
            f"group_figure_{_entry.name}"
        input:
            plan=rules.collect_group.output.plan,
        output:
            f"{GROUP}/figures/{_stem}.png",
        log:
            f"{ROOT}/logs/groups/{{group}}/figure/{_stem}.log",
        wildcard_constraints:
            group=one_of(TARGETS.groups),
            task=one_of(TARGETS.tasks),
        localrule: True
        conda:
            "../../envs/analyse.yaml"
        params:
            name=_entry.name,
            task="--task {task}" if _entry.per_task else "",
            stem=lambda wildcards, output: os.path.splitext(output[0])[0],
            results=lambda wildcards, input: os.path.dirname(input.plan),
        message:
            "figure {params.stem}"
        shell:
            "troll --log {log:q} figure {params.name:q} {params.task} --results {params.results:q}"
            " --out {params.stem:q}"


rule group_claims:
    input:
        plan=rules.collect_group.output.plan,
        ledger=TARGETS.claims_inputs,
    output:
        f"{GROUP}/claims.md",
        f"{GROUP}/claims.json",
    log:
        f"{ROOT}/logs/groups/{{group}}/claims.log",
    wildcard_constraints:
        group=one_of(TARGETS.groups),
    localrule: True
    conda:
        "../../envs/analyse.yaml"
    params:
        stem=lambda wildcards, output: os.path.splitext(output[0])[0],
        results=lambda wildcards, input: os.path.dirname(input.plan),
        ledger=TARGETS.claims_arguments,
        digests=TARGETS.claims_digests,
    message:
        "claims of {wildcards.group}"
    shell:
        "troll --log {log:q} claims {params.ledger} --results {params.results:q} --out {params.stem:q}"


rule group_page:
    input:
        artefacts=lambda wildcards: TARGETS.outputs_of(
            f"{ROOT}/groups/{wildcards.group}",
            TARGETS.groups[wildcards.group],
            wildcards.group,
        ),
        claims=rules.group_claims.output,
        plan=rules.collect_group.output.plan,
        ledger=TARGETS.claims_inputs,
    output:
        f"{GROUP}/page.html",
    log:
        f"{ROOT}/logs/groups/{{group}}/page.log",
    wildcard_constraints:
        group=one_of(TARGETS.groups),
    localrule: True
    conda:
        "../../envs/analyse.yaml"
    params:
        results=lambda wildcards, input: os.path.dirname(input.plan),
        ledger=TARGETS.claims_options,
        digests=TARGETS.claims_digests,
        command=lambda wildcards: f"snakemake {wildcards.group}",
    message:
        "page {output}"
    shell:
        "troll --log {log:q} page --results {params.results:q} --out {output:q} {params.ledger}"
        " --command {params.command:q}"


for _group in TARGETS.groups:

    rule:
        name:
            _group
        input:
            f"{ROOT}/groups/{_group}/page.html",
