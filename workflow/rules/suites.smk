# Evaluation on further data sets: their problems, and two jobs per model, which sample and grade.


rule suite_problems:
    output:
        f"{ROOT}/suites/{{suite}}/test.jsonl",
    log:
        f"{ROOT}/logs/suite_problems/{{suite}}.log",
    wildcard_constraints:
        suite=one_of(TARGETS.suites),
    conda:
        "../../envs/train.yaml"
    params:
        config=PARAMETERS.suite_problems,
        out=lambda wildcards, output: os.path.dirname(output[0]),
    message:
        "problems of {wildcards.suite}"
    shell:
        "troll --log {log:q} job problems --config {params.config:q} --out {params.out:q}"


rule sample_suites:
    input:
        manifest=f"{ROOT}/{{checkpoint_dir}}/manifest.json",
        problems=TARGETS.suite_problems,
    output:
        f"{ROOT}/{{checkpoint_dir}}/suites/sampled.json",
    log:
        f"{ROOT}/logs/sample_suites/{{checkpoint_dir}}.log",
    benchmark:
        f"{ROOT}/benchmarks/sample_suites/{{checkpoint_dir}}.jsonl"
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
        config=PARAMETERS.suites,
        checkpoint=lambda wildcards, input: f"{os.path.dirname(input.manifest)}/checkpoint",
        data=f"{ROOT}/suites",
        out=lambda wildcards, output: os.path.dirname(output[0]),
        troll=SAMPLING_PROGRAM,
    message:
        "sample further data sets, {wildcards.checkpoint_dir}"
    shell:
        "{params.troll} --log {log:q} job sample-suites --config {params.config:q} --checkpoint {params.checkpoint:q}"
        " --data {params.data:q} --gpus {resources.gpu} --out {params.out:q}"


rule grade_suites:
    input:
        sampled=rules.sample_suites.output[0],
        problems=TARGETS.suite_problems,
    output:
        f"{ROOT}/{{checkpoint_dir}}/suites/graded.json",
    log:
        f"{ROOT}/logs/grade_suites/{{checkpoint_dir}}.log",
    conda:
        "../../envs/evaluate.yaml"
    threads: 1
    resources:
        mem_mb=growing(FIXED["grade_suites"].memory_mb),
        runtime=FIXED["grade_suites"].minutes,
    params:
        data=f"{ROOT}/suites",
        out=lambda wildcards, output: os.path.dirname(output[0]),
    message:
        "grade further data sets, {wildcards.checkpoint_dir}"
    shell:
        "troll --log {log:q} job grade-suites --data {params.data:q} --out {params.out:q}"
