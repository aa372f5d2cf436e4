# Finished runs in small files that git can track; a run that is among them, made by the same source from the same
# configuration, is restored and not made again. Only where the experiment file says `archive: true`.


rule restore:
    input:
        lambda wildcards: archive_of(wildcards.restored),
    output:
        manifest=f"{ROOT}/restored/{{restored}}/manifest.json",
        grades=f"{ROOT}/restored/{{restored}}/grades.json",
    log:
        f"{ROOT}/logs/restore/{{restored}}.log",
    wildcard_constraints:
        restored=one_of(RESTORABLE),
    localrule: True
    conda:
        "../../envs/analyse.yaml"
    params:
        out=lambda wildcards, output: os.path.dirname(output.manifest),
    message:
        "restore {wildcards.restored}"
    shell:
        "troll --log {log:q} restore {input:q} --out {params.out:q}"


rule restore_suites:
    input:
        archive=lambda wildcards: archive_of(wildcards.restored),
        others=rules.restore.output,
    output:
        f"{ROOT}/restored/{{restored}}/suites/graded.json",
    log:
        f"{ROOT}/logs/restore_suites/{{restored}}.log",
    wildcard_constraints:
        restored=one_of(RESTORABLE),
    localrule: True
    conda:
        "../../envs/analyse.yaml"
    params:
        out=lambda wildcards: directory_of(wildcards.restored),
    message:
        "restore grades of {wildcards.restored} on further data sets"
    shell:
        "troll --log {log:q} restore {input.archive:q} --suites --out {params.out:q}"


rule archive:
    input:
        lambda wildcards: f"{ROOT}/{wildcards.checkpoint_dir}/manifest.json",
        lambda wildcards: grades_of(wildcards.checkpoint_dir),
    output:
        f"{ARCHIVE}/{{checkpoint_dir}}.zip",
    log:
        f"{ROOT}/logs/archive/{{checkpoint_dir}}.log",
    wildcard_constraints:  # an archive that is restored from is never written, nor is its run made for it
        checkpoint_dir=one_of(archivable(RUNS)),
    priority: 2
    localrule: True
    conda:
        "../../envs/analyse.yaml"
    params:
        directory=lambda wildcards: f"{ROOT}/{wildcards.checkpoint_dir}",
        evaluation=lambda wildcards: as_json(evaluation_of(wildcards.checkpoint_dir)),
    message:
        "archive {wildcards.checkpoint_dir}"
    shell:
        "troll --log {log:q} archive {params.directory:q} --evaluation {params.evaluation:q} --out {output:q}"
