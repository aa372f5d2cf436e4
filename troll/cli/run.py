"""`troll run`: what `make results` runs."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from troll.cli.options import seed_list
from troll.common.errors import UserError

app = typer.Typer()

_DEFAULT = "workflow/config/testbed.yaml"


class _WithTargets(TyperCommand):
    """Takes what follows `--` for targets, also where no experiment stands before it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads what stands before the targets."""
        end = args.index("--") if "--" in args else len(args)
        ctx.meta["targets"] = args[end + 1 :]
        return super().parse_args(ctx, args[:end])


@app.command(cls=_WithTargets, context_settings={"ignore_unknown_options": True})
def run(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[EXPERIMENT] [OPTIONS]...",
            help="an experiment file, by default the testbed's; then options of Snakemake",
        ),
    ] = None,
    cores: Annotated[str, typer.Option("--cores", "-c", help="processors: a number, or all")] = "all",
    minutes: Annotated[
        str | None, typer.Option(help="start no further seeds after so many; default the file's")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="seeds instead of the file's: 0,1,2")] = None,
) -> None:
    """Run an experiment: models, training, evaluation, tables, page.

    You can interrupt it at any time: the same command continues. Targets of Snakemake come after `--`.

    Example: troll run workflow/config/testbed.yaml --cores 2
    """
    from troll.operations.run import main

    experiment, *options = words or [_DEFAULT]
    if experiment.startswith("-"):
        if any(word.endswith((".yaml", ".yml")) for word in options):
            raise UserError(f"run: name the experiment file before {experiment}, an option of Snakemake")
        experiment, options = _DEFAULT, [experiment, *options]
    main(
        Path(experiment),
        context.meta["targets"] or ["all"],
        cores=cores,
        minutes=minutes,
        seeds=None if seeds is None else seed_list(seeds),
        options=options,
    )
