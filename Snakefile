# Entry point of `snakemake --cores N`. The workflow itself is in workflow/, where Snakemake's catalogue expects it, and
# users who load it as a module.


include: "workflow/Snakefile"


workflow.default_target = "all"  # Snakemake ignores an included file's default target
