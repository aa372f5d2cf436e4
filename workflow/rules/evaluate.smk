# Samples and grades of every run and every base model, in separate files.


rule sample:
    input:
        manifest=f"{ROOT}/{{checkpoint_dir}}/manifest.json",
        problems=TARGETS.test_problems,
    output:
        f"{ROOT}/{{checkpoint_dir}}/samples.jsonl",
    log:
        f"{ROOT}/logs/sample/{{checkpoint_dir}}.log",
    benchmark:
        f"{ROOT}/benchmarks/sample/{{checkpoint_dir}}.jsonl"
    # Evaluation has priority, so that runs are completed before new ones start.
    priority: 1
    conda:
        SAMPLING_ENVIRONMENT
    threads: 1
    resources:
        gpu=lambda wildcards: PARAMETERS.sampling_request(wildcards).gpus,
        mem_mb=lambda wildcards, attempt: PARAMETERS.sampling_request(
            wildcards, attempt
        ).memory_mb,
        runtime=lambda wildcards: PARAMETERS.sampling_request(wildcards).minutes,
    params:
        task=task_of,
        config=PARAMETERS.sampling,
        checkpoint=lambda wildcards, input: f"{os.path.dirname(input.manifest)}/checkpoint",
        troll=SAMPLING_PROGRAM,
    message:
        "sample {wildcards.checkpoint_dir}"
    shell:
        "{params.troll} --log {log:q} job sample --config {params.config:q} --checkpoint {params.checkpoint:q}"
        " --problems {input.problems:q} --task {params.task:q} --gpus {resources.gpu} --out {output:q}"


rule grade:
    input:
        samples=rules.sample.output[0],
        problems=TARGETS.test_problems,
    output:
        f"{ROOT}/{{checkpoint_dir}}/grades.json",
    log:
        f"{ROOT}/logs/grade/{{checkpoint_dir}}.log",
    benchmark:
        f"{ROOT}/benchmarks/grade/{{checkpoint_dir}}.jsonl"
    priority: 1
    conda:
        "../../envs/evaluate.yaml"
    threads: 1
    resources:
        mem_mb=growing(FIXED["grade"].memory_mb),
        runtime=FIXED["grade"].minutes,
    params:
        task=task_of,
    message:
        "grade {wildcards.checkpoint_dir}"
    shell:
        "troll --log {log:q} grade --task {params.task:q} --samples {input.samples:q}"
        " --problems {input.problems:q} --out {output:q}"


# Public data sets: reference solutions ("oracle") and base models on benchmarks, and the audit of the graders.


rule benchmark_problems:
    output:
        f"{ROOT}/public/{{benchmark}}/problems/test.jsonl",
    log:
        f"{ROOT}/logs/public/{{benchmark}}/problems.log",
    conda:
        "../../envs/evaluate.yaml"
    params:
        config=PUBLIC.problems,
        out=lambda wildcards, output: os.path.dirname(output[0]),
    message:
        "problems of {wildcards.benchmark}"
    shell:
        "troll --log {log:q} job problems --config {params.config:q} --out {params.out:q}"


rule oracle:
    input:
        rules.benchmark_problems.output,
    output:
        f"{ROOT}/public/{{benchmark}}/oracle/samples.jsonl",
    log:
        f"{ROOT}/logs/public/{{benchmark}}/oracle.log",
    conda:
        "../../envs/evaluate.yaml"
    message:
        "reference solutions of {wildcards.benchmark}"
    shell:
        "troll --log {log:q} job oracle --task {wildcards.benchmark:q} --problems {input:q} --out {output:q}"


rule sample_benchmark:
    input:
        manifest=f"{ROOT}/{BASE}/{{model}}/{{task}}/manifest.json",
        problems=rules.benchmark_problems.output,
    output:
        f"{ROOT}/public/{{benchmark}}/base/{{model}}/{{task}}/samples.jsonl",
    log:
        f"{ROOT}/logs/public/{{benchmark}}/sample/{{model}}/{{task}}.log",
    conda:
        "../../envs/train.yaml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=60,
    params:
        checkpoint=lambda wildcards, input: f"{os.path.dirname(input.manifest)}/checkpoint",
        config=PUBLIC.sampling,
    message:
        "sample {wildcards.benchmark} from the base model of {wildcards.task}"
    shell:
        "troll --log {log:q} job sample --config {params.config:q} --checkpoint {params.checkpoint:q}"
        " --problems {input.problems:q} --task {wildcards.benchmark:q} --out {output:q}"


rule grade_benchmark:
    input:
        f"{ROOT}/public/{{benchmark}}/{{answers}}/samples.jsonl",
    output:
        f"{ROOT}/public/{{benchmark}}/{{answers}}/grades.json",
    log:
        f"{ROOT}/logs/public/{{benchmark}}/grade/{{answers}}.log",
    wildcard_constraints:
        answers=r"oracle|base/.+",
    conda:
        "../../envs/evaluate.yaml"
    threads: workflow.cores
    resources:
        mem_mb=growing(4000),
        runtime=60,
    message:
        "grade {wildcards.benchmark}, {wildcards.answers}"
    shell:
        "troll --log {log:q} grade --task {wildcards.benchmark:q} --samples {input:q} --only-present --out {output:q}"


rule benchmarks:
    input:
        PUBLIC.answer_files,
    output:
        report(
            f"{ROOT}/public/benchmarks.csv",
            caption=CAPTIONS / "benchmarks_table.rst",
            category="Public data",
            labels={"table": "benchmarks"},
        ),
        f"{ROOT}/public/benchmarks.md",
    log:
        f"{ROOT}/logs/public/benchmarks.log",
    conda:
        "../../envs/analyse.yaml"
    params:
        answers=PUBLIC.labelled,
        stem=lambda wildcards, output: os.path.splitext(output[0])[0],
        skipped=PUBLIC.reasons,
    message:
        "table of public benchmarks"
    shell:
        "troll --log {log:q} job benchmark-table {params.answers:q} --out {params.stem:q} --skipped {params.skipped:q}"


# Reserves all cores, because the hostile programs of the audit have time limits.
rule audit:
    output:
        report(
            f"{ROOT}/audit/audit.csv",
            caption=CAPTIONS / "audit_table.rst",
            category="Public data",
            labels={"table": "audit of the graders"},
        ),
        multiext(f"{ROOT}/audit/audit", ".md", ".json"),
    log:
        f"{ROOT}/logs/audit.log",
    conda:
        "../../envs/evaluate.yaml"
    threads: workflow.cores
    resources:
        mem_mb=growing(4000),
        runtime=120,
    params:
        out=lambda wildcards, output: os.path.splitext(output[0])[0],
        full=PUBLIC.audit_options,
    message:
        "audit of the graders"
    shell:
        'python "$TROLL_WORKFLOW/graders/audit.py" --log {log:q} --out {params.out:q} {params.full}'
