"""The workflow's jobs on public data sets: benchmarks of base models, and the graders' audit.

By default they use a mirror on this machine. Without one they are skipped, which the report says; nothing is
downloaded unless the experiment asks for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from troll.experiment.measurement_settings import PublicData
from troll.operations.parameters import settings_file
from troll.operations.places import Wildcards, place_of_base
from troll.operations.targets import Targets

_AUDIT = "audit"


def skipped_parts(public: PublicData | None) -> dict[str, str]:
    """Returns, by name, why benchmarks or the audit are skipped on this machine."""
    if public is None:
        return {}
    from troll.tasks.datasets.catalogue import DATA_SETS
    from troll.tasks.datasets.mirror import mirror
    from troll.tasks.sandbox.pool import sandbox_available

    parts = [*public.benchmarks, *([_AUDIT] if public.audit != "none" else [])]
    if public.source == "mirror" and mirror() is None:
        return dict.fromkeys(parts, "TROLL_DATA_MIRROR is not set")
    code = [name for name in parts if name == _AUDIT or DATA_SETS[name].kind == "code"]
    available, reason = sandbox_available() if code else (True, "")
    return {} if available else dict.fromkeys(code, reason)


@dataclass(frozen=True, eq=False)
class PublicWork:
    """Inputs, outputs and parameters of the jobs on public data."""

    targets: Targets
    # benchmarks, or the audit, that are skipped on this machine, with the reason
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> PublicData | None:
        """What the experiment requests of public data; None for nothing."""
        return self.targets.experiment.public_data

    def sampling(self, wildcards: Wildcards) -> str:
        """Returns how base models are sampled on a benchmark; prompts longer than their context are cut."""
        assert self.settings is not None
        evaluation = self.targets.experiment.evaluation.model_dump(include={"temperature", "batch_size"})
        requested = self.settings.model_dump(include={"samples", "max_tokens"})
        return settings_file("sampling", {**evaluation, **requested, "cut_prompts": True})

    @property
    def audit_options(self) -> str:
        """Command-line options of the audit."""
        return "--full" if self.settings and self.settings.audit == "full" else ""

    def problems(self, wildcards: Wildcards) -> str:
        """Returns settings of a benchmark's problems: the number requested, at most all of them."""
        from troll.tasks.datasets.catalogue import DATA_SETS

        name = wildcards["benchmark"]
        assert self.settings is not None
        available, size = DATA_SETS[name].parts["test"].rows, self.settings.problems
        if size != "all" and available is not None:
            size = min(size, available)
        return settings_file("problems", {"name": name, "test": size})

    @property
    def answers(self) -> list[tuple[str, str]]:
        """(label, directory) of all answers: the oracle's, and base models' of tasks of the same kind."""
        from troll.tasks.registry import get_task

        found = []
        for name in self.settings.benchmarks if self.settings else []:
            if name in self.skipped:
                continue
            directory = f"{self.targets.root}/public/{name}"
            found.append(("oracle", f"{directory}/oracle"))
            found += [
                (f"base of {task} ({model})", f"{directory}/{place_of_base(model, task)}")
                for model, task in self.targets.bases
                if get_task(task).kind == get_task(name).kind
            ]
        return found

    @property
    def labelled(self) -> list[str]:
        """The answers as arguments ``label=directory`` of the command that makes the table."""
        return [f"{label}={directory}" for label, directory in self.answers]

    def reasons(self, wildcards: Wildcards) -> str:
        """Returns what is skipped, and why."""
        return settings_file("skipped", dict(self.skipped))

    @property
    def answer_files(self) -> list[str]:
        """Files of samples and grades of all answers."""
        return [f"{path}/{name}" for _, path in self.answers for name in ("samples.jsonl", "grades.json")]

    @property
    def outputs(self) -> list[str]:
        """Files that the report shows of public data; empty if the experiment requests none."""
        if self.settings is None:
            return []
        audited = self.settings.audit != "none" and _AUDIT not in self.skipped
        audit = [f"{self.targets.root}/audit/audit.csv"] if audited else []
        return [f"{self.targets.root}/public/benchmarks.csv", *audit]
