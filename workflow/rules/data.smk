# The problems of each task, in disjoint splits.


rule problems:
    output:
        train=f"{ROOT}/data/{{task}}/train.jsonl",
        validation=f"{ROOT}/data/{{task}}/validation.jsonl",
        test=f"{ROOT}/data/{{task}}/test.jsonl",
    log:
        f"{ROOT}/logs/problems/{{task}}.log",
    conda:
        "../../envs/train.yaml"
    params:
        config=PARAMETERS.problems,
        out=lambda wildcards, output: os.path.dirname(output.train),
    message:
        "problems of {wildcards.task}"
    shell:
        "troll --log {log:q} job problems --config {params.config:q} --out {params.out:q}"
