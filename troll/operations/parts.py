"""Parts of an experiment with their own tables, figures, verdicts and page: the whole, and named groups."""

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
    caption: str  # name of the caption
    labels: dict[str, str]  # shown in the report's list


@dataclass(frozen=True, eq=False)
class Part:
    """An experiment, or a named group of its runs."""

    targets: Targets
    group: str | None = None  # name of the group; None for the whole experiment

    @property
    def directory(self) -> str:
        """Directory of everything that is made from these runs."""
        root = self.targets.root
        return root if self.group is None else f"{root}/groups/{self.group}"

    @property
    def logs(self) -> str:
        """Directory of the logs."""
        logs = f"{self.targets.root}/logs"
        return logs if self.group is None else f"{logs}/groups/{self.group}"

    def rule(self, name: str) -> str:
        """Returns a rule's name for this part; it is unique, as group names cannot contain a dash."""
        return name if self.group is None else f"{name}-{self.group}"

    @property
    def runs(self) -> list[Run]:
        """Runs that this machine can make."""
        return self.targets.runs if self.group is None else self.targets.groups[self.group]

    def inputs(self, wildcards: Wildcards) -> list[str]:
        """Files that the tidy table is made from; raises a UserError if this machine can make no run."""
        if not self.runs:
            raise UserError(f"group {self.group}: none of its tasks can be run on this machine")
        return self.targets.files_of(self.runs)

    @property
    def mark(self) -> list[str]:
        """Mark file whose removal makes Snakemake collect the whole experiment again; none for a group."""
        return [self.targets.collected] if self.group is None else []

    @property
    def tidy(self) -> list[str]:
        """The tidy table as an output; none for an archive, as Snakemake deletes outputs before a job."""
        kept = self.group is None and self.targets.experiment.archive
        return [] if kept else [f"{self.directory}/tidy/all.parquet"]

    def plan(self, wildcards: Wildcards) -> str:
        """The plan; it includes runs of skipped tasks, so that tables can name them."""
        groups = [] if self.group is None else [self.group]
        return settings_file("plan", self.targets.plan_of(self.targets.experiment.runs(groups)))

    @property
    def markdown(self) -> list[str]:
        """The experiment's README.md in its results; none for a group."""
        return [f"{self.directory}/README.md"] if self.group is None else []

    @property
    def tables(self) -> list[Output]:
        """The tables as CSV."""
        return [
            Output(f"{self.directory}/tables/{entry.name}.csv", entry.caption, {"table": entry.title})
            for entry in entries_of("table", self.targets.experiment, self.runs, self.group)
        ]

    @property
    def tables_in_markdown(self) -> list[str]:
        """The tables as Markdown."""
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
        """Options of `troll job report` that list what to make."""
        tables = entries_of("table", self.targets.experiment, self.runs, self.group)
        options = [f"--table {entry.name}" for entry in tables]
        options += [f"--figure {entry.name}{f':{task}' * bool(task)}" for entry, task, _ in self._figures()]
        options += [f"--markdown {quote(path)}" for path in self.markdown]
        options += [] if self.group is None else [f"--command {quote(f'snakemake {self.group}')}"]
        return options


def parts_of(targets: Targets) -> list[Part]:
    """Returns the whole experiment and then its groups."""
    return [Part(targets), *(Part(targets, group) for group in targets.groups)]
