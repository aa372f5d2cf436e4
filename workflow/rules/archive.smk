# With `archive: true` in the experiment file, finished runs are appended to the released tables, and runs in the tables
# count as finished: no rule makes their mark, so they are never repeated, whatever the file times.


rule append:
    input:
        manifest=f"{ROOT}/{{checkpoint_dir}}/manifest.json",
        grades=TARGETS.grades,
    output:
        touch(f"{ROOT}/{{checkpoint_dir}}/appended"),
    log:
        f"{ROOT}/logs/append/{{checkpoint_dir}}.log",
    wildcard_constraints:
        checkpoint_dir=one_of(TARGETS.missing_places),
    priority: 2
    localrule: True
    conda:
        "../../envs/analyse.yaml"
    params:
        directory=lambda wildcards, input: os.path.dirname(input.manifest),
        results=lambda wildcards: ROOT,
        key=TARGETS.key,
    message:
        "append {wildcards.checkpoint_dir}"
    shell:
        "troll --log {log:q} job append {params.directory:q} --results {params.results:q} --key {params.key:q}"
