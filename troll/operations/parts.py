"""What has tables, figures, verdicts and a page of its own: an experiment, or a named group of its runs."""

from collections.abc import Iterator
from dataclasses import dataclass
from shlex import quote

from troll.analysis.registry import Entry
from troll.common.errors import UserError
from troll.experiment.experiment import Run
from troll.operations.outputs import entries_of, figures_of
from troll.operations.parameters import settings_file
from troll.operations.places import Wildcards
from troll.operations.targets import Targets


@dataclass(frozen=True)
class Output:
    """A file that Snakemake's report shows."""

    path: str
    caption: str  # name of its text
    labels: dict[str, str]  # what the report's list says of it


@dataclass(frozen=True, eq=False)
class Part:
    """An experiment, or a named group of its runs."""

    targets: Targets
    group: str | None = None  # name of the group; None for the whole experiment

    @property
    def directory(self) -> str:
        """Gets everything that is made from these runs."""
        root = self.targets.root
        return root if self.group is None else f"{root}/groups/{self.group}"

    @property
    def logs(self) -> str:
        """Gets the logs."""
        logs = f"{self.targets.root}/logs"
        return logs if self.group is None else f"{logs}/groups/{self.group}"

    def rule(self, name: str) -> str:
        """The name of a rule; that of a group has a dash, which the name of a group cannot have."""
        return name if self.group is None else f"{name}-{self.group}"

    @property
    def runs(self) -> list[Run]:
        """The runs that can be made on this machine."""
        return self.targets.runs if self.group is None else self.targets.groups[self.group]

    def inputs(self, wildcards: Wildcards) -> list[str]:
        """What the tidy table is made from; an error where none of the runs can be made on this machine."""
        if not self.runs:
            raise UserError(f"group {self.group}: none of its tasks can be run on this machine")
        return self.targets.files_of(self.runs)

    @property
    def mark(self) -> list[str]:
        """What makes a fresh clone train the runs instead of believing the tables that it came with.

        The tables of an experiment are tracked by git, and the runs behind them are not: no more is the mark
        among the runs. Those of a group are not tracked either.
        """
        return [self.targets.collected] if self.group is None else []

    @property
    def tidy(self) -> list[str]:
        """The tidy table, unless finished runs are kept in it: Snakemake removes outputs before a job."""
        kept = self.group is None and self.targets.experiment.archive
        return [] if kept else [f"{self.directory}/tidy/all.parquet"]

    def plan(self, wildcards: Wildcards) -> str:
        """What is planned: runs of skipped tasks too, so that tables can name them."""
        groups = [] if self.group is None else [self.group]
        return settings_file("plan", self.targets.plan_of(self.targets.experiment.runs(groups)))

    @property
    def markdown(self) -> list[str]:
        """The page of an experiment that is read where its results are kept."""
        return [f"{self.directory}/README.md"] if self.group is None else []

    @property
    def tables(self) -> list[Output]:
        """The tables, for programs."""
        return [
            Output(f"{self.directory}/tables/{entry.name}.csv", entry.caption, {"table": entry.title})
            for entry in entries_of("table", self.targets.experiment, self.runs, self.group)
        ]

    @property
    def tables_in_markdown(self) -> list[str]:
        """The tables as people read them where the results are kept."""
        return [f"{table.path.removesuffix('.csv')}.md" for table in self.tables]

    @property
    def figures(self) -> list[Output]:
        """The figures."""
        return [
            Output(
                f"{self.directory}/figures/{stem}.png",
                entry.caption,
                {"figure": entry.title} | ({"task": task} if task else {}),
            )
            for entry, task, stem in self._figures()
        ]

    def _figures(self) -> Iterator[tuple[Entry, str, str]]:
        return figures_of(self.targets.experiment, self.runs, self.group)

    def report_options(self, wildcards: Wildcards) -> list[str]:
        """What `troll job report` is to make."""
        tables = entries_of("table", self.targets.experiment, self.runs, self.group)
        options = [f"--table {entry.name}" for entry in tables]
        options += [f"--figure {entry.name}{f':{task}' * bool(task)}" for entry, task, _ in self._figures()]
        options += [f"--markdown {quote(path)}" for path in self.markdown]
        options += [] if self.group is None else [f"--command {quote(f'snakemake {self.group}')}"]
        return options


def parts_of(targets: Targets) -> list[Part]:
    """The whole experiment, then its groups."""
    return [Part(targets), *(Part(targets, group) for group in targets.groups)]
