# Everything below is a function of the tidy table, and of nothing else. Which tables and figures there are is told by
# troll/analysis/registry.py.


# The tidy tables are tracked by git, and the runs behind them are not: the mark among the runs, which is not tracked
# either, makes a fresh clone train them instead of believing the tables that it came with. Tables in which finished runs
# are kept are no output: Snakemake would remove them before the job.
rule collect:
    input:
        TARGETS.files_of(TARGETS.runs),
    output:
        plan=f"{ROOT}/plan.json",
        mark=touch(TARGETS.collected),
        tidy=[] if EXPERIMENT.archive else f"{ROOT}/tidy/all.parquet",
    log:
        f"{ROOT}/logs/collect.log",
    localrule: True
    conda:
        "../../envs/analyse.yaml"
    params:
        directories=TARGETS.directories(TARGETS.runs),
        out=lambda wildcards, output: os.path.dirname(output.plan),
        planned=TARGETS.plan_of(EXPERIMENT.runs()),
        options=TARGETS.collect_options,
    message:
        "collect {params.out}"
    shell:
        "printf %s {params.planned:q} | troll --log {log:q} collect {params.directories:q} --out {params.out:q}"
        " {params.options} --plan -"


# A caption belongs to a rule, so that every table and figure gets a rule of its own.
for _entry in entries_of("table", EXPERIMENT, TARGETS.runs):

    rule:
        name:
            f"table_{_entry.name}"
        input:
            plan=rules.collect.output.plan,
            mark=rules.collect.output.mark,
        output:
            report(
                f"{ROOT}/tables/{_entry.name}.csv",
                caption=CAPTIONS / f"{_entry.caption}.rst",
                category="Tables",
                labels={"table": _entry.title},
            ),
            f"{ROOT}/tables/{_entry.name}.md",
        log:
            f"{ROOT}/logs/table/{_entry.name}.log",
        localrule: True
        conda:
            "../../envs/analyse.yaml"
        params:
            name=_entry.name,
            stem=lambda wildcards, output: os.path.splitext(output[0])[0],
            results=lambda wildcards, input: os.path.dirname(input.plan),
        message:
            "table {params.name}"
        shell:
            "troll --log {log:q} table {params.name:q} --results {params.results:q} --out {params.stem:q}"


for _entry in entries_of("figure", EXPERIMENT, TARGETS.runs):
    _stem = f"{_entry.name}_{{task}}" if _entry.per_task else _entry.name

    rule:
        name:
            f"figure_{_entry.name}"
        input:
            plan=rules.collect.output.plan,
            mark=rules.collect.output.mark,
        output:
            report(
                f"{ROOT}/figures/{_stem}.png",
                caption=CAPTIONS / f"{_entry.caption}.rst",
                category="Figures",
                labels=(
                    {"figure": _entry.title, "task": "{task}"}
                    if _entry.per_task
                    else {"figure": _entry.title}
                ),
            ),
        log:
            f"{ROOT}/logs/figure/{_stem}.log",
        wildcard_constraints:
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
            "figure {output[0]}"
        shell:
            "troll --log {log:q} figure {params.name:q} {params.task} --results {params.results:q}"
            " --out {params.stem:q}"


rule claims:
    input:
        plan=rules.collect.output.plan,
        mark=rules.collect.output.mark,
        ledger=TARGETS.claims_inputs,
    output:
        report(
            f"{ROOT}/claims.md",
            caption=CAPTIONS / "claims.rst",
            category="Verdicts",
            labels={"table": "claims"},
        ),
        f"{ROOT}/claims.json",
    log:
        f"{ROOT}/logs/claims.log",
    localrule: True
    conda:
        "../../envs/analyse.yaml"
    params:
        stem=lambda wildcards, output: os.path.splitext(output[0])[0],
        results=lambda wildcards, input: os.path.dirname(input.plan),
        ledger=TARGETS.claims_arguments,
        digests=TARGETS.claims_digests,
    message:
        "claims"
    shell:
        "troll --log {log:q} claims {params.ledger} --results {params.results:q} --out {params.stem:q}"


# Timings need the machine for themselves: all cores, so that nothing else runs beside them.
rule cost:
    output:
        report(
            f"{ROOT}/cost/cost.csv",
            caption=CAPTIONS / "cost_table.rst",
            category="Cost",
            labels={"table": "cost"},
        ),
        multiext(f"{ROOT}/cost/cost", ".md", ".json"),
    log:
        f"{ROOT}/logs/cost.log",
    conda:
        "../../envs/train.yaml"
    threads: workflow.cores
    resources:
        mem_mb=6000,
        runtime=60,
    params:
        out=lambda wildcards, output: os.path.dirname(output[0]),
        tokens=PARAMETERS.cost["tokens"],
        widths=PARAMETERS.cost["widths"],
        vocabulary=PARAMETERS.cost["vocabulary"],
        repeats=PARAMETERS.cost["repeats"],
    message:
        "cost of an update"
    shell:
        'python "$TROLL_WORKFLOW/benchmarks/measure.py" --log {log:q} cost'
        " --out {params.out:q} --tokens {params.tokens} {params.widths}"
        " --vocabulary {params.vocabulary} --repeats {params.repeats} --threads {threads}"


rule cost_step:
    output:
        report(
            f"{ROOT}/cost/cost_step.csv",
            caption=CAPTIONS / "cost_step_table.rst",
            category="Cost",
            labels={"table": "cost of a step"},
        ),
        f"{ROOT}/cost/cost_step.md",
    log:
        f"{ROOT}/logs/cost_step.log",
    conda:
        "../../envs/train.yaml"
    threads: workflow.cores
    resources:
        mem_mb=6000,
        runtime=60,
    params:
        out=lambda wildcards, output: os.path.dirname(output[0]),
        sizes=PARAMETERS.step_sizes,
        repeats=PARAMETERS.cost["repeats"],
    message:
        "cost of an optimiser step"
    shell:
        'python "$TROLL_WORKFLOW/benchmarks/measure.py" --log {log:q} cost-step'
        " --out {params.out:q} {params.sizes} --repeats {params.repeats}"
        " --device cpu --threads {threads}"


# What the base models leave to learn; nothing else needs it: `snakemake difficulty`. It reads weights and samples, which
# no table holds: base models that stand in the tables are made here.
rule difficulty:
    input:
        [f"{base}/grades.json" for base in TARGETS.base_directories],
    output:
        multiext(f"{ROOT}/difficulty", ".csv", ".md"),
    log:
        f"{ROOT}/logs/difficulty.log",
    conda:
        "../../envs/train.yaml"
    threads: 1
    resources:
        mem_mb=3000,
        runtime=60,
    params:
        bases=TARGETS.base_directories,
        out=lambda wildcards, output: os.path.splitext(output[0])[0],
    message:
        "difficulty of the tasks"
    shell:
        'python "$TROLL_WORKFLOW/benchmarks/measure.py" --log {log:q} difficulty {params.bases:q} --out {params.out:q}'


rule approximation_zipf:
    output:
        report(
            f"{ROOT}/approximation/zipf/approximation.png",
            caption=CAPTIONS / "approximation_figure.rst",
            category="Approximation",
            labels={"policies": "Zipf-like"},
        ),
        multiext(f"{ROOT}/approximation/zipf/approximation", ".csv", ".md"),
    log:
        f"{ROOT}/logs/approximation/zipf.log",
    conda:
        "../../envs/train.yaml"
    params:
        out=lambda wildcards, output: os.path.dirname(output[0]),
    message:
        "sparse against dense, Zipf-like policies"
    shell:
        'python "$TROLL_WORKFLOW/benchmarks/measure.py" --log {log:q} approximation --out {params.out:q}'


rule approximation_task:
    input:
        old=lambda wildcards: f"{TARGETS.base_of(wildcards.task)}/samples.jsonl",
        new=lambda wildcards: f"{TARGETS.first_run_of(wildcards.task)}/manifest.json",
        problems=f"{ROOT}/data/{{task}}/test.jsonl",
    output:
        report(
            f"{ROOT}/approximation/task/{{task}}/approximation.png",
            caption=CAPTIONS / "approximation_figure.rst",
            category="Approximation",
            labels={"policies": "{task}"},
        ),
        multiext(f"{ROOT}/approximation/task/{{task}}/approximation", ".csv", ".md"),
    log:
        f"{ROOT}/logs/approximation/{{task}}.log",
    conda:
        "../../envs/train.yaml"
    params:
        old=lambda wildcards, input: f"{os.path.dirname(input.old)}/checkpoint",
        new=lambda wildcards, input: f"{os.path.dirname(input.new)}/checkpoint",
        out=lambda wildcards, output: os.path.dirname(output[0]),
    message:
        "sparse against dense, {wildcards.task}"
    shell:
        'python "$TROLL_WORKFLOW/benchmarks/measure.py" --log {log:q} approximation'
        " --old {params.old:q} --new {params.new:q} --samples {input.old:q}"
        " --problems {input.problems:q} --task {wildcards.task:q} --out {params.out:q}"


ARTEFACTS = [
    f"{ROOT}/claims.md",
    *TARGETS.measurements,
    *PUBLIC.outputs,
    *TARGETS.outputs_of(ROOT, TARGETS.runs),
]


rule artefacts:
    input:
        ARTEFACTS,


# All of it as one page that opens without Snakemake: verdicts first. `snakemake --report` makes Snakemake's own.
rule page:
    input:
        artefacts=ARTEFACTS,
        plan=rules.collect.output.plan,
        mark=rules.collect.output.mark,
        ledger=TARGETS.claims_inputs,
    output:
        page=f"{ROOT}/page.html",
        markdown=f"{ROOT}/README.md",
    log:
        f"{ROOT}/logs/page.log",
    localrule: True
    conda:
        "../../envs/analyse.yaml"
    params:
        results=lambda wildcards, input: os.path.dirname(input.plan),
        ledger=TARGETS.claims_options,
        digests=TARGETS.claims_digests,
    message:
        "page {output.page}"
    shell:
        "troll --log {log:q} page --results {params.results:q} --out {output.page:q} --markdown {output.markdown:q}"
        " {params.ledger}"
