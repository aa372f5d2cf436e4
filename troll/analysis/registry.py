"""Registry of an experiment's tables and figures, for the commands, the workflow and the page.

An entry names a function, whose parameter names select its inputs: ``runs`` and ``items`` (the tidy tables),
``expected`` and ``skipped`` (the plan), ``task`` (in entries per task), or the name of another table, which
is then computed first. The caption is ``<name>_<kind>`` in captions.rst. This module has no heavy imports,
because the workflow reads it at every start.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

Kind = Literal["table", "figure"]
When = Literal["always", "compared", "variants", "crossed", "base models", "published"]

BASELINE = "clip"
"""The trust region from which tables and figures take differences."""


@dataclass(frozen=True)
class Entry:
    """A table or a figure."""

    kind: Kind
    name: str
    title: str  # its heading on the page
    function: str  # ``module:function`` below ``troll.analysis``
    settings: Mapping[str, str] = field(default_factory=dict)  # further keyword arguments of the function
    # "compared": `BASELINE` was run beside another trust region; "variants": a rule was also run with other
    # settings; "crossed": learning rate and staleness were varied together; "base models": a kind of model
    # has several base models; "published": the experiment asks for the paper's numbers
    when: When = "always"
    per_task: bool = False  # whether there is one for each task of the experiment
    groups: tuple[str, ...] = ()  # of published entries: the groups of ``paper.yaml`` with the runs

    @property
    def caption(self) -> str:
        """The name of its caption."""
        return f"{self.name}_{self.kind}"


def _table(name: str, title: str, function: str, when: When = "always") -> Entry:
    return Entry("table", name, title, f"tables.{function}", when=when)


def _figure(name: str, title: str, function: str, when: When = "always", *, per_task: bool = False) -> Entry:
    return Entry("figure", name, title, f"figures.{function}", when=when, per_task=per_task)


def _published(section: str, title: str, *groups: str) -> Entry:
    function, settings = "tables.published:published_table", {"section": section}
    return Entry("table", f"published_{section}", title, function, settings, "published", groups=groups)


def _published_figure(section: str, title: str, group: str) -> Entry:
    function = f"figures.published:{section}_figure"
    return Entry("figure", f"published_{section}", title, function, when="published", groups=(group,))


# In page order.
ENTRIES = (
    _table("comparison", "TROLL against PPO-clip", "results:comparison_table", "compared"),
    _table("main", "Test success and training behaviour", "results:main_table"),
    _table("aggregate", "Methods over all settings of a condition", "aggregates:aggregate_table"),
    _table("speed", "Training speed", "behaviour:speed_table"),
    _table("stability", "Stability of training", "behaviour:stability_table"),
    _table("test", "Test success by task", "results:test_table"),
    _table("constraint_check", "What the trust regions did", "results:constraint_check_table"),
    _table("ablation", "Variants of each rule", "results:ablation_table", "variants"),
    _table("matched", "Methods at equal divergence", "comparisons:matched_table", "variants"),
    _table("base_models", "Differences over base models", "base_models:base_models_table", "base models"),
    _table("power", "Seeds needed to see a difference", "behaviour:power_table", "compared"),
    _table("training_cost", "What training took", "behaviour:training_cost_table"),
    _figure("forest", "Differences from PPO-clip", "forest:forest_figure", "compared"),
    _figure("main", "Success over training", "results:main_figure"),
    _figure("final", "Success after training", "results:final_figure"),
    _figure("time", "Success over time", "results:time_figure"),
    _figure("sensitivity", "How much settings matter", "sensitivity:sensitivity_figure", "variants"),
    _figure("frontier", "Success against divergence", "frontier:frontier_figure", "variants"),
    _figure("heat_map", "Success by learning rate and staleness", "heat_map:heat_map_figure", "crossed"),
    _figure("base_models", "Differences by base model", "base_models:base_models_figure", "base models"),
    _figure("ablation", "Learning curves of variants", "results:ablation_figure", "variants"),
    _figure("learning", "Learning", "results:task_figure", per_task=True),
    _figure("projection", "What the trust regions did", "results:projection_figure", per_task=True),
    _published("families", "Model families", "paper_families"),
    _published("sizes", "Qwen3 sizes", "paper_sizes"),
    _published("estimators", "Advantage estimators on Qwen3-8B", "paper_estimators"),
    _published("ablations", "Ablations on Qwen3-1.7B", "paper_ablations"),
    _published("cost", "Cost on Qwen3-4B", "paper_sizes"),
    _published("entropy", "Policy entropy of Qwen3-14B", "paper_sizes"),
    _published("code", "Code", "paper_code"),
    _published("staleness", "Staleness", "paper_staleness"),
    _published("summary", "Second description: a published summary of the paper", "summary_matrix"),
    _published_figure("sizes", "The paper's Qwen3 sizes", "paper_sizes"),
    _published_figure("estimators", "The paper's estimators", "paper_estimators"),
    _published_figure("families", "The paper's model families", "paper_families"),
    _published_figure("code", "The paper's code", "paper_code"),
    _published_figure("analysis", "The paper's analysis", "paper_ablations"),
    _published_figure("staleness", "Staleness", "paper_staleness"),
)


def entries(kind: Kind) -> dict[str, Entry]:
    """Returns the tables or the figures by name, in page order."""
    return {entry.name: entry for entry in ENTRIES if entry.kind == kind}


def requested(kind: Kind, applies: Mapping[When, bool], group: str | None = None) -> list[Entry]:
    """Returns the tables or figures that apply to an experiment, or to a group of its runs."""
    return [
        entry
        for entry in entries(kind).values()
        if applies[entry.when] and (entry.when != "published" or group is None or group in entry.groups)
    ]


def variants_of(rules: Mapping[str, str]) -> dict[str, str]:
    """Returns the variants among the methods, mapped to the method that they vary.

    A method is a variant if its rule is also the name of a method: ``troll-kl0.01`` with rule ``troll`` is a
    variant of ``troll`` if that is among the methods.
    """
    return {name: rule for name, rule in rules.items() if name != rule and rule in rules}


def crossed(pairs: Iterable[tuple[Hashable, Hashable]]) -> bool:
    """Returns whether two values of one setting were both combined with the same two of another."""
    by_first: dict[Hashable, set[Hashable]] = {}
    for first, second in pairs:
        by_first.setdefault(first, set()).add(second)
    return any(len(values & other) > 1 for values, other in combinations(by_first.values(), 2))


def stems(chosen: Iterable[Entry], tasks: Iterable[str]) -> list[str]:
    """File names of the entries without suffix; ``learning_chains`` for a figure of one task."""
    endings = [f"_{task}" for task in tasks]
    return [f"{entry.name}{ending}" for entry in chosen for ending in (endings if entry.per_task else [""])]
