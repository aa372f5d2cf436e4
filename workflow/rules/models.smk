# Base models: trained from scratch with a shared tokenizer, or taken from the hub or a package. A new version of the
# numerics that affects base models makes them again, through the parameter `numerics`.


rule tokenizer:
    output:
        f"{ROOT}/base/{{model}}/tokenizer/tokenizer.json",
    log:
        f"{ROOT}/logs/tokenizer/{{model}}.log",
    conda:
        "../../envs/train.yaml"
    params:
        config=PARAMETERS.tokenizer,
        out=lambda wildcards, output: os.path.dirname(output[0]),
    message:
        "tokenizer of {wildcards.model}"
    shell:
        "troll --log {log:q} job tokenizer --config {params.config:q} --out {params.out:q}"


rule base_model:
    input:
        tokenizer=rules.tokenizer.output[0],
    output:
        manifest=f"{ROOT}/base/{{model}}/{{task}}/manifest.json",
    log:
        f"{ROOT}/logs/base_model/{{model}}/{{task}}.log",
    benchmark:
        f"{ROOT}/benchmarks/base_model/{{model}}/{{task}}.jsonl"
    wildcard_constraints:
        model=one_of(TARGETS.scratch),
    conda:
        "../../envs/train.yaml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=30,
    params:
        config=PARAMETERS.base_model,
        numerics=last_change(""),
        tokenizer=lambda wildcards, input: os.path.dirname(input.tokenizer),
        out=lambda wildcards, output: os.path.dirname(output.manifest),
    message:
        "base model {wildcards.model} for {wildcards.task}"
    shell:
        "troll --log {log:q} job base-model --config {params.config:q} --tokenizer {params.tokenizer:q} --out {params.out:q}"


# Links to the hub's cache, to a mirror or to the shared directory of models from packages, with the digests of the linked
# files; after supervised steps, the trained model.
rule hub_model:
    output:
        manifest=f"{ROOT}/base/{{model}}/{{task}}/manifest.json",
    log:
        f"{ROOT}/logs/base_model/{{model}}/{{task}}.log",
    benchmark:
        f"{ROOT}/benchmarks/base_model/{{model}}/{{task}}.jsonl"
    wildcard_constraints:
        model=one_of(TARGETS.pretrained),
    conda:
        "../../envs/train.yaml"
    threads: lambda wildcards: PARAMETERS.base_request(wildcards).threads
    resources:
        gpu=lambda wildcards: PARAMETERS.base_request(wildcards).gpus,
        mem_mb=lambda wildcards, attempt: PARAMETERS.base_request(
            wildcards, attempt
        ).memory_mb,
        runtime=lambda wildcards: PARAMETERS.base_request(wildcards).minutes,
    params:
        config=PARAMETERS.base_model,
        numerics=last_change(""),
        out=lambda wildcards, output: os.path.dirname(output.manifest),
    message:
        "pretrained model {wildcards.model} for {wildcards.task}"
    shell:
        "troll --log {log:q} job hub-model --config {params.config:q} --gpus {resources.gpu} --out {params.out:q}"
