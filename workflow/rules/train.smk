# One run: its run.yaml, then training. The trainer's own checkpoints are not declared, so that they survive a
# failure and the next attempt goes on from them; the manifest, written last, says that the run is complete.

RUN = f"{ROOT}/runs/{{model}}/{{task}}/{{trust_region}}/{{estimator}}/{{condition}}/seed{{seed}}"


rule configure:
    output:
        f"{RUN}/run.yaml",
    log:
        f"{ROOT}/logs/configure/{{model}}/{{task}}/{{trust_region}}/{{estimator}}/{{condition}}/seed{{seed}}.log",
    conda:
        "../../envs/train.yaml"
    params:
        config=run_config,
    message:
        "configure {output}"
    shell:
        "troll --log {log:q} configure --config {params.config:q} --out {output:q}"


rule train:
    input:
        run=rules.configure.output[0],
        base=rules.base_model.output.manifest,
        train=rules.problems.output.train,
        validation=rules.problems.output.validation,
    output:
        manifest=f"{RUN}/manifest.json",
    log:
        f"{ROOT}/logs/train/{{model}}/{{task}}/{{trust_region}}/{{estimator}}/{{condition}}/seed{{seed}}.log",
    benchmark:
        f"{ROOT}/benchmarks/train/{{model}}/{{task}}/{{trust_region}}/{{estimator}}/{{condition}}/seed{{seed}}.jsonl"
    conda:
        "../../envs/train.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        base=lambda wildcards, input: f"{os.path.dirname(input.base)}/checkpoint",
        data=lambda wildcards, input: os.path.dirname(input.train),
    message:
        "train {wildcards.task}/{wildcards.trust_region}/{wildcards.estimator}/{wildcards.condition}/seed{wildcards.seed}"
    shell:
        "troll --log {log:q} train {input.run:q} --base {params.base:q} --data {params.data:q}"
