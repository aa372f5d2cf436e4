# Finished runs as rows of the released tables, where the experiment file says `archive: true`: a run that stands there
# counts as made, and one that ends is appended. No rule makes the mark of a run that stands there already: whatever is
# newer than its directory, it is not made again.


rule append:
    input:
        manifest=f"{ROOT}/{{checkpoint_dir}}/manifest.json",
        grades=TARGETS.grades,
    output:
        touch(f"{ROOT}/{{checkpoint_dir}}/appended"),
    log:
        f"{ROOT}/logs/append/{{checkpoint_dir}}.log",
    wildcard_constraints:
        checkpoint_dir=one_of(TARGETS.lacking),
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
