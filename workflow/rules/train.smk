# A run: its run.yaml, then training. The trainer's checkpoints are not declared as output, so that they survive a failure
# and the next attempt resumes from them; the manifest, written last, marks the run as complete. A new version of the
# numerics that affects the run's rule repeats the run through the parameter `numerics`, which no command reads.

import signal

# SLURM sends its warning before a time limit to every process of a job; only the training program may react to it.
signal.signal(signal.SIGUSR1, signal.SIG_IGN)

RUN = f"{ROOT}/runs/{{model}}/{{task}}/{{trust_region}}/{{estimator}}/{{condition}}/seed{{seed}}"


rule configure:
    output:
        f"{RUN}/run.yaml",
    log:
        f"{ROOT}/logs/configure/{{model}}/{{task}}/{{trust_region}}/{{estimator}}/{{condition}}/seed{{seed}}.log",
    localrule: True
    conda:
        "../../envs/train.yaml"
    params:
        config=PARAMETERS.run,
    message:
        "configure {output}"
    shell:
        "troll --log {log:q} job configure --config {params.config:q} --out {output:q}"


rule train:
    input:
        run=rules.configure.output[0],
        base=rules.base_model.output.manifest,
        train=rules.problems.output.train,
        validation=rules.problems.output.validation,
        suites=TARGETS.validation_suites,
    output:
        manifest=f"{RUN}/manifest.json",
    log:
        f"{ROOT}/logs/train/{{model}}/{{task}}/{{trust_region}}/{{estimator}}/{{condition}}/seed{{seed}}.log",
    benchmark:
        f"{ROOT}/benchmarks/train/{{model}}/{{task}}/{{trust_region}}/{{estimator}}/{{condition}}/seed{{seed}}.jsonl"
    conda:
        TRAINING_ENVIRONMENT
    threads: lambda wildcards: PARAMETERS.training_request(wildcards).threads
    resources:
        gpu=lambda wildcards: PARAMETERS.training_request(wildcards).gpus,
        mem_mb=lambda wildcards, attempt: PARAMETERS.training_request(
            wildcards, attempt
        ).memory_mb,
        runtime=lambda wildcards: PARAMETERS.training_request(wildcards).minutes,
        on_limit="exit",
    params:
        troll=TRAINING_PROGRAM,
        numerics=PARAMETERS.numerics,
        base=lambda wildcards, input: f"{os.path.dirname(input.base)}/checkpoint",
        data=lambda wildcards, input: os.path.dirname(input.train),
        suites=f"{ROOT}/suites",
    message:
        "train {wildcards.task}/{wildcards.trust_region}/{wildcards.estimator}/{wildcards.condition}/seed{wildcards.seed}"
    shell:
        "exec {params.troll} --log {log:q} job train {input.run:q} --base {params.base:q} --data {params.data:q}"
        " --suites {params.suites:q} --on-limit {resources.on_limit}"
