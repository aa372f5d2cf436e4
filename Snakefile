# The entry: plain `snakemake --cores N` finds it here. The workflow itself lies where others look for it who use it as a
# module, or from Snakemake's catalogue.


include: "workflow/Snakefile"


workflow.default_target = "all"  # Snakemake forgets that of an included file
