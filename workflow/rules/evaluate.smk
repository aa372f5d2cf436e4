# Samples and grades are files of their own, for every run and every base model alike.


rule sample:
    input:
        manifest=f"{ROOT}/{{place}}/manifest.json",
        problems=lambda wildcards: f"{ROOT}/data/{task_of(wildcards)}/test.jsonl",
    output:
        f"{ROOT}/{{place}}/samples.jsonl",
    log:
        f"{ROOT}/logs/sample/{{place}}.log",
    benchmark:
        f"{ROOT}/benchmarks/sample/{{place}}.jsonl"
    conda:
        "../../envs/train.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        task=task_of,
        checkpoint=lambda wildcards, input: f"{os.path.dirname(input.manifest)}/checkpoint",
        samples=EXPERIMENT.evaluation.samples,
        temperature=EXPERIMENT.evaluation.temperature,
        batch_size=EXPERIMENT.evaluation.batch_size,
        max_tokens=max_tokens_of,
        seed=sample_seed,
    message:
        "sample {wildcards.place}"
    shell:
        "troll --log {log:q} sample --checkpoint {params.checkpoint:q} --problems {input.problems:q}"
        " --task {params.task:q} --samples {params.samples} --temperature {params.temperature}"
        " --batch-size {params.batch_size} --max-tokens {params.max_tokens} --seed {params.seed} --out {output:q}"


rule grade:
    input:
        samples=rules.sample.output[0],
        problems=lambda wildcards: f"{ROOT}/data/{task_of(wildcards)}/test.jsonl",
    output:
        f"{ROOT}/{{place}}/grades.json",
    log:
        f"{ROOT}/logs/grade/{{place}}.log",
    benchmark:
        f"{ROOT}/benchmarks/grade/{{place}}.jsonl"
    conda:
        "../../envs/evaluate.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        task=task_of,
    message:
        "grade {wildcards.place}"
    shell:
        "troll --log {log:q} grade --task {params.task:q} --samples {input.samples:q}"
        " --problems {input.problems:q} --out {output:q}"
