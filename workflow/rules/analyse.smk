# Except for measurements, everything below is computed from the tidy tables. troll/analysis/registry.py lists tables and
# figures.

MEASUREMENTS = [*TARGETS.measurements, *PUBLIC.outputs]


# Rules for the experiment and for each named group of its runs: `snakemake GROUP` makes only the runs, tables, figures,
# verdicts and page of that group. Tables to which finished runs are appended are not declared as output, because Snakemake
# would remove them before the job.
for _group in groups_of(TARGETS):

    rule:
        name:
            _group.rule("collect")
        input:
            _group.inputs,
        output:
            plan=f"{_group.directory}/plan.json",
            mark=touch(_group.mark),
            tidy=_group.tidy,
        log:
            f"{_group.logs}/collect.log",
        localrule: True
        conda:
            "../../envs/analyse.yaml"
        params:
            directories=TARGETS.directories(_group.runs),
            out=lambda wildcards, output: os.path.dirname(output.plan),
            plan=_group.plan,
            options=TARGETS.collect_options,
        message:
            "collect {params.out}"
        shell:
            "troll --log {log:q} job collect {params.directories:q} --out {params.out:q}"
            " {params.options} --plan {params.plan:q}"

    rule:
        name:
            _group.rule("claims")
        input:
            plan=f"{_group.directory}/plan.json",
            mark=_group.mark,
        output:
            report(
                f"{_group.directory}/claims.md",
                caption=CAPTIONS / "claims.rst",
                category="Verdicts",
                labels={"table": "claims"},
            ),
            f"{_group.directory}/claims.json",
        log:
            f"{_group.logs}/claims.log",
        localrule: True
        conda:
            "../../envs/analyse.yaml"
        params:
            stem=lambda wildcards, output: os.path.splitext(output[0])[0],
            results=lambda wildcards, input: os.path.dirname(input.plan),
            ledger=TARGETS.claims_arguments,
            digests=TARGETS.claims_digests,
        message:
            "claims {params.results}"
        shell:
            "troll --log {log:q} job claims {params.ledger} --results {params.results:q} --out {params.stem:q}"

    # Makes a self-contained page; `snakemake --report` makes Snakemake's own report.
    rule:
        name:
            _group.rule("report")
        input:
            plan=f"{_group.directory}/plan.json",
            mark=_group.mark,
            claims=f"{_group.directory}/claims.md",
            measurements=MEASUREMENTS if _group.name is None else [],
        output:
            page=f"{_group.directory}/page.html",
            markdown=_group.markdown,
            tables=[
                report(
                    table.path,
                    caption=CAPTIONS / f"{table.caption}.rst",
                    category="Tables",
                    labels=table.labels,
                )
                for table in _group.tables
            ],
            in_markdown=_group.tables_in_markdown,
            figures=[
                report(
                    figure.path,
                    caption=CAPTIONS / f"{figure.caption}.rst",
                    category="Figures",
                    labels=figure.labels,
                )
                for figure in _group.figures
            ],
        log:
            f"{_group.logs}/report.log",
        localrule: True
        conda:
            "../../envs/analyse.yaml"
        params:
            results=lambda wildcards, output: os.path.dirname(output.page),
            options=_group.report_options,
            ledger=TARGETS.claims_options,
            digests=TARGETS.claims_digests,
        message:
            "report {params.results}"
        shell:
            "troll --log {log:q} job report {params.results:q} {params.options} {params.ledger}"


for _name in TARGETS.groups:

    rule:
        name:
            _name
        input:
            f"{ROOT}/groups/{_name}/page.html",


# Timings reserve all cores, so that no other job runs at the same time.
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
        mem_mb=growing(COST.memory_mb),
        runtime=COST.minutes,
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
        mem_mb=growing(COST.memory_mb),
        runtime=COST.minutes,
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


# Whether the tasks can discriminate between rules; only on request: `snakemake difficulty`. It reads weights and samples, so
# base models are made even if the tables have their grades.
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
        mem_mb=growing(3000),
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
