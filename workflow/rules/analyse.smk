# Everything below is a function of the tidy table, and of nothing else.

TABLES = [
    "main",
    "comparison",
    "aggregate",
    "test",
    "certificate",
    "speed",
    "stability",
    "power",
    "training_cost",
]
FIGURES = ["main", "final", "hours"]
if has_variants():
    TABLES.append("ablation")
    FIGURES += ["ablation", "sensitivity"]
if EXPERIMENT.published:
    TABLES += published_names("table")
    FIGURES += published_names("figure")
TASK_FIGURES = ["learning", "projection"]
TASKS = list(dict.fromkeys(run.task for run in RUNS))


# The tidy table is tracked by git, and the runs behind it are not: the mark among the runs, which is not tracked
# either, makes a fresh clone train them instead of believing the table that it came with.
rule collect:
    input:
        files_of(RUNS),
    output:
        runs=f"{ROOT}/runs.parquet",
        csv=f"{ROOT}/runs.csv.gz",
        problems=f"{ROOT}/items.parquet",
        plan=f"{ROOT}/plan.json",
        mark=touch(f"{ROOT}/runs/collected"),
    log:
        f"{ROOT}/logs/collect.log",
    conda:
        "../../envs/analyse.yaml"
    params:
        directories=[f"{ROOT}/{place}" for place in places_of(RUNS)],
        out=lambda wildcards, output: os.path.dirname(output.runs),
        expected=as_json([{**vars(run)} for run in EXPERIMENT.runs()]),
        skipped=as_json(SKIPPED),
        mixed="--allow-mixed" if EXPERIMENT.allow_mixed else "",
    message:
        "collect {output.runs}"
    shell:
        "troll --log {log:q} collect {params.directories:q} --out {params.out:q} {params.mixed}"
        " --expected {params.expected:q} --skipped {params.skipped:q}"


# A caption belongs to a rule, so that every table and figure gets a rule of its own.
for _name in TABLES:

    rule:
        name:
            f"table_{_name}"
        input:
            runs=rules.collect.output.runs,
            problems=rules.collect.output.problems,
            plan=rules.collect.output.plan,
            mark=rules.collect.output.mark,
        output:
            report(
                f"{ROOT}/tables/{_name}.html",
                caption=f"../report/{_name}_table.rst",
                category="Tables",
                labels={"table": _name},
            ),
            multiext(f"{ROOT}/tables/{_name}", ".csv", ".md", ".tex"),
        log:
            f"{ROOT}/logs/table/{_name}.log",
        conda:
            "../../envs/analyse.yaml"
        params:
            name=_name,
            stem=lambda wildcards, output: os.path.splitext(output[0])[0],
            results=lambda wildcards, input: os.path.dirname(input.runs),
        message:
            "table {params.name}"
        shell:
            "troll --log {log:q} table {params.name:q} --results {params.results:q} --out {params.stem:q}"


for _name in FIGURES:

    rule:
        name:
            f"figure_{_name}"
        input:
            runs=rules.collect.output.runs,
            problems=rules.collect.output.problems,
            plan=rules.collect.output.plan,
            mark=rules.collect.output.mark,
        output:
            report(
                f"{ROOT}/figures/{_name}.png",
                caption=f"../report/{_name}_figure.rst",
                category="Figures",
                labels={"figure": _name},
            ),
            f"{ROOT}/figures/{_name}.pdf",
        log:
            f"{ROOT}/logs/figure/{_name}.log",
        conda:
            "../../envs/analyse.yaml"
        params:
            name=_name,
            stem=lambda wildcards, output: os.path.splitext(output[0])[0],
            results=lambda wildcards, input: os.path.dirname(input.runs),
        message:
            "figure {params.name}"
        shell:
            "troll --log {log:q} figure {params.name:q} --results {params.results:q} --out {params.stem:q}"


for _name in TASK_FIGURES:

    rule:
        name:
            f"task_figure_{_name}"
        input:
            runs=rules.collect.output.runs,
            problems=rules.collect.output.problems,
            plan=rules.collect.output.plan,
            mark=rules.collect.output.mark,
        output:
            report(
                f"{ROOT}/figures/{_name}_{{task}}.png",
                caption=f"../report/{_name}_figure.rst",
                category="Figures",
                labels={"figure": _name, "task": "{task}"},
            ),
            f"{ROOT}/figures/{_name}_{{task}}.pdf",
        log:
            f"{ROOT}/logs/task_figure/{_name}_{{task}}.log",
        wildcard_constraints:
            task="|".join(TASKS),
        conda:
            "../../envs/analyse.yaml"
        params:
            name=_name,
            stem=lambda wildcards, output: os.path.splitext(output[0])[0],
            results=lambda wildcards, input: os.path.dirname(input.runs),
        message:
            "figure {params.name} of {wildcards.task}"
        shell:
            "troll --log {log:q} figure {params.name:q} --task {wildcards.task:q} --results {params.results:q}"
            " --out {params.stem:q}"


rule claims:
    input:
        runs=rules.collect.output.runs,
        problems=rules.collect.output.problems,
        plan=rules.collect.output.plan,
        mark=rules.collect.output.mark,
        ledger=EXPERIMENT.claims,
    output:
        report(
            f"{ROOT}/claims.md",
            caption="../report/claims.rst",
            category="Verdicts",
            labels={"table": "claims"},
        ),
        f"{ROOT}/claims.json",
    log:
        f"{ROOT}/logs/claims.log",
    conda:
        "../../envs/analyse.yaml"
    params:
        stem=lambda wildcards, output: os.path.splitext(output[0])[0],
        results=lambda wildcards, input: os.path.dirname(input.runs),
    message:
        "claims"
    shell:
        "troll --log {log:q} claims {input.ledger:q} --results {params.results:q} --out {params.stem:q}"


# Timings need the machine for themselves: all cores, so that nothing else runs beside them.
rule cost:
    output:
        report(
            f"{ROOT}/cost/cost.html",
            caption="../report/cost_table.rst",
            category="Cost",
            labels={"table": "cost"},
        ),
        multiext(f"{ROOT}/cost/cost", ".csv", ".md", ".tex", ".json"),
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
        tokens=EXPERIMENT.cost.tokens if EXPERIMENT.cost else 0,
        widths=[
            f"--width {width}"
            for width in (EXPERIMENT.cost.widths if EXPERIMENT.cost else [])
        ],
        vocabulary=EXPERIMENT.cost.vocabulary if EXPERIMENT.cost else 0,
        repeats=EXPERIMENT.cost.repeats if EXPERIMENT.cost else 0,
    message:
        "cost of an update"
    shell:
        "troll --log {log:q} cost --out {params.out:q} --tokens {params.tokens} {params.widths}"
        " --vocabulary {params.vocabulary} --repeats {params.repeats} --threads {threads}"


rule cost_step:
    output:
        report(
            f"{ROOT}/cost/cost_step.html",
            caption="../report/cost_step_table.rst",
            category="Cost",
            labels={"table": "cost of a step"},
        ),
        multiext(f"{ROOT}/cost/cost_step", ".csv", ".md", ".tex"),
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
        sizes=step_cost_options(),
        repeats=EXPERIMENT.cost.repeats if EXPERIMENT.cost else 0,
    message:
        "cost of an optimiser step"
    shell:
        "troll --log {log:q} cost-step --out {params.out:q} {params.sizes} --repeats {params.repeats}"
        " --device cpu --threads {threads}"


rule approximation_zipf:
    output:
        report(
            f"{ROOT}/approximation/zipf/approximation.png",
            caption="../report/approximation_figure.rst",
            category="Approximation",
            labels={"policies": "Zipf-like"},
        ),
        multiext(
            f"{ROOT}/approximation/zipf/approximation", ".csv", ".md", ".tex", ".pdf"
        ),
    log:
        f"{ROOT}/logs/approximation/zipf.log",
    conda:
        "../../envs/train.yaml"
    params:
        out=lambda wildcards, output: os.path.dirname(output[0]),
    message:
        "sparse against dense, Zipf-like policies"
    shell:
        "troll --log {log:q} approximation --out {params.out:q}"


rule approximation_task:
    input:
        old=lambda wildcards: f"{ROOT}/{base_of(wildcards.task)}/samples.jsonl",
        new=lambda wildcards: f"{ROOT}/{first_run_of(wildcards.task)}/manifest.json",
        problems=f"{ROOT}/data/{{task}}/test.jsonl",
    output:
        report(
            f"{ROOT}/approximation/task/{{task}}/approximation.png",
            caption="../report/approximation_figure.rst",
            category="Approximation",
            labels={"policies": "{task}"},
        ),
        multiext(
            f"{ROOT}/approximation/task/{{task}}/approximation",
            ".csv",
            ".md",
            ".tex",
            ".pdf",
        ),
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
        "troll --log {log:q} approximation --old {params.old:q} --new {params.new:q} --samples {input.old:q}"
        " --problems {input.problems:q} --task {wildcards.task:q} --out {params.out:q}"


ARTEFACTS = [
    f"{ROOT}/claims.md",
    *([f"{ROOT}/cost/cost.html"] if EXPERIMENT.cost else []),
    *([f"{ROOT}/cost/cost_step.html"] if step_cost_options() else []),
    *approximation_figures(),
    *public_outputs(),
    *collect(f"{ROOT}/tables/{{name}}.html", name=TABLES),
    *collect(f"{ROOT}/figures/{{name}}.png", name=FIGURES),
    *collect(f"{ROOT}/figures/{{name}}_{{task}}.png", name=TASK_FIGURES, task=TASKS),
]


rule artefacts:
    input:
        ARTEFACTS,


# Snakemake makes its report from the records of finished jobs; this job asks it for the report of everything but
# itself, so that the page is a target like any other.
rule report:
    input:
        ARTEFACTS,
    output:
        f"{ROOT}/report.html",
    log:
        f"{ROOT}/logs/report.log",
    conda:
        "../../envs/analyse.yaml"
    params:
        configuration=as_json(config),
    message:
        "report {output}"
    shell:
        "troll --log {log:q} report --config {params.configuration:q} --out {output:q} {input:q}"


# The same evidence as one page that opens without Snakemake: verdicts first.
rule page:
    input:
        artefacts=ARTEFACTS,
        runs=rules.collect.output.runs,
        mark=rules.collect.output.mark,
        ledger=EXPERIMENT.claims,
    output:
        f"{ROOT}/page.html",
    log:
        f"{ROOT}/logs/page.log",
    conda:
        "../../envs/analyse.yaml"
    params:
        results=lambda wildcards, input: os.path.dirname(input.runs),
        ledger=[f"--ledger {path}" for path in EXPERIMENT.claims],
    message:
        "page {output}"
    shell:
        "troll --log {log:q} page --results {params.results:q} --out {output:q} {params.ledger}"
