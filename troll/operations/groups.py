"""Groups of runs with their own tables, figures, verdicts and page; the whole experiment is one of them."""

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
class Group:
    """An experiment, or a named group of its runs."""

    targets: Targets
    name: str | None = None  # None for the whole experiment

    @property
    def directory(self) -> str:
        """Directory of everything that is made from these runs."""
        root = self.targets.root
        return root if self.name is None else f"{root}/groups/{self.name}"

    @property
    def logs(self) -> str:
        """Directory of the logs."""
        logs = f"{self.targets.root}/logs"
        return logs if self.name is None else f"{logs}/groups/{self.name}"

    def rule(self, name: str) -> str:
        """Returns a rule's name for this group; it is unique, as group names cannot contain a dash."""
        return name if self.name is None else f"{name}-{self.name}"

    @property
    def runs(self) -> list[Run]:
        """Runs that this machine can make."""
        return self.targets.runs if self.name is None else self.targets.groups[self.name]

    def inputs(self, wildcards: Wildcards) -> list[str]:
        """Files that the tidy table is made from; raises a UserError if this machine can make no run."""
        if not self.runs:
            raise UserError(f"group {self.name}: none of its tasks can be run on this machine")
        return self.targets.files_of(self.runs)

    @property
    def mark(self) -> list[str]:
        """Mark file whose removal makes Snakemake collect the whole experiment again; none for a group."""
        return [self.targets.collected] if self.name is None else []

    @property
    def tidy(self) -> list[str]:
        """The tidy table as an output; none for an archive, as Snakemake deletes outputs before a job."""
        kept = self.name is None and self.targets.experiment.archive
        return [] if kept else [f"{self.directory}/tidy/all.parquet"]

    def plan(self, wildcards: Wildcards) -> str:
        """Returns the plan; it includes runs of skipped tasks, so that tables can name them."""
        groups = [] if self.name is None else [self.name]
        return settings_file("plan", self.targets.plan_of(self.targets.experiment.runs(groups)))

    @property
    def markdown(self) -> list[str]:
        """The experiment's README.md in its results; none for a group."""
        return [f"{self.directory}/README.md"] if self.name is None else []

    @property
    def tables(self) -> list[Output]:
        """The tables as CSV."""
        return [
            Output(f"{self.directory}/tables/{entry.name}.csv", entry.caption, {"table": entry.title})
            for entry in entries_of("table", self.targets.experiment, self.runs, self.name)
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
        return figures_of(self.targets.experiment, self.runs, self.name)

    def report_options(self, wildcards: Wildcards) -> list[str]:
        """Options of `troll job report` that list what to make."""
        tables = entries_of("table", self.targets.experiment, self.runs, self.name)
        options = [f"--table {entry.name}" for entry in tables]
        options += [f"--figure {entry.name}{f':{task}' * bool(task)}" for entry, task, _ in self._figures()]
        options += [f"--markdown {quote(path)}" for path in self.markdown]
        options += [] if self.name is None else [f"--command {quote(f'snakemake {self.name}')}"]
        return options


def groups_of(targets: Targets) -> list[Group]:
    """Returns the whole experiment and then its groups."""
    return [Group(targets), *(Group(targets, group) for group in targets.groups)]
