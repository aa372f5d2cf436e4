# A named group of an experiment's runs: `snakemake GROUP` runs them and makes their tables, figures, verdicts and page,
# whatever else the experiment holds.

GROUP = f"{ROOT}/groups/{{group}}"


rule collect_group:
    input:
        files_of_group,
    output:
        runs=f"{GROUP}/runs.parquet",
        problems=f"{GROUP}/items.parquet",
        plan=f"{GROUP}/plan.json",
    log:
        f"{ROOT}/logs/groups/{{group}}/collect.log",
    wildcard_constraints:
        group=one_of(GROUPS),
    localrule: True
    conda:
        "../../envs/analyse.yaml"
    params:
        directories=lambda wildcards: [
            directory_of(checkpoint_dir)
            for checkpoint_dir in checkpoint_dirs_of(GROUPS[wildcards.group])
        ],
        out=lambda wildcards, output: os.path.dirname(output.runs),
        expected=lambda wildcards: planned(EXPERIMENT.groups()[wildcards.group]),
        skipped=as_json(SKIPPED),
        looks=as_json(looks()),
        mixed="--allow-mixed" if EXPERIMENT.allow_mixed else "",
        ledger=named_claims(),
    message:
        "collect {output.runs}"
    shell:
        "printf %s {params.expected:q} | troll --log {log:q} collect {params.directories:q} --out {params.out:q}"
        " {params.mixed} {params.ledger} --expected - --skipped {params.skipped:q} --looks {params.looks:q}"


rule group_table:
    input:
        runs=rules.collect_group.output.runs,
        problems=rules.collect_group.output.problems,
        plan=rules.collect_group.output.plan,
    output:
        multiext(f"{GROUP}/tables/{{name}}", ".csv", ".md", ".tex"),
    log:
        f"{ROOT}/logs/groups/{{group}}/table/{{name}}.log",
    wildcard_constraints:
        group=one_of(GROUPS),
        name=r"[a-z_]+",
    localrule: True
    conda:
        "../../envs/analyse.yaml"
    params:
        stem=lambda wildcards, output: os.path.splitext(output[0])[0],
        results=lambda wildcards, input: os.path.dirname(input.runs),
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
            runs=rules.collect_group.output.runs,
            problems=rules.collect_group.output.problems,
            plan=rules.collect_group.output.plan,
        output:
            multiext(f"{GROUP}/figures/{_stem}", ".png", ".pdf"),
        log:
            f"{ROOT}/logs/groups/{{group}}/figure/{_stem}.log",
        wildcard_constraints:
            group=one_of(GROUPS),
            task=one_of(TASKS),
        localrule: True
        conda:
            "../../envs/analyse.yaml"
        params:
            name=_entry.name,
            task="--task {task}" if _entry.per_task else "",
            stem=lambda wildcards, output: os.path.splitext(output[0])[0],
            results=lambda wildcards, input: os.path.dirname(input.runs),
        message:
            "figure {params.stem}"
        shell:
            "troll --log {log:q} figure {params.name:q} {params.task} --results {params.results:q}"
            " --out {params.stem:q}"


rule group_claims:
    input:
        runs=rules.collect_group.output.runs,
        problems=rules.collect_group.output.problems,
        plan=rules.collect_group.output.plan,
        ledger=CLAIMS,
    output:
        f"{GROUP}/claims.md",
        f"{GROUP}/claims.json",
    log:
        f"{ROOT}/logs/groups/{{group}}/claims.log",
    wildcard_constraints:
        group=one_of(GROUPS),
    localrule: True
    conda:
        "../../envs/analyse.yaml"
    params:
        stem=lambda wildcards, output: os.path.splitext(output[0])[0],
        results=lambda wildcards, input: os.path.dirname(input.runs),
    message:
        "claims of {wildcards.group}"
    shell:
        "troll --log {log:q} claims {input.ledger:q} --results {params.results:q} --out {params.stem:q}"


rule group_page:
    input:
        artefacts=lambda wildcards: outputs_of(
            f"{ROOT}/groups/{wildcards.group}",
            GROUPS[wildcards.group],
            wildcards.group,
        ),
        claims=rules.group_claims.output,
        runs=rules.collect_group.output.runs,
        ledger=CLAIMS,
    output:
        f"{GROUP}/page.html",
    log:
        f"{ROOT}/logs/groups/{{group}}/page.log",
    wildcard_constraints:
        group=one_of(GROUPS),
    localrule: True
    conda:
        "../../envs/analyse.yaml"
    params:
        results=lambda wildcards, input: os.path.dirname(input.runs),
        ledger=[f"--ledger {quote(path)}" for path in CLAIMS],
        command=lambda wildcards: f"snakemake {wildcards.group}",
    message:
        "page {output}"
    shell:
        "troll --log {log:q} page --results {params.results:q} --out {output:q} {params.ledger}"
        " --command {params.command:q}"


for _group in GROUPS:

    rule:
        name:
            _group
        input:
            f"{ROOT}/groups/{_group}/page.html",
