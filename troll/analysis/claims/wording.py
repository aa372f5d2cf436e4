"""Verdicts in words: their reasons, with differences in the unit of the metric."""

import math
from collections.abc import Callable, Sequence

from troll.analysis.claims.decision import MOST_SEEDS, PairedDifferences, least_refuted
from troll.analysis.claims.verdicts import Claim, ClaimVerdict
from troll.analysis.data.divergence import WITHIN
from troll.analysis.metrics import METRICS, SHARE, SUMMARIES
from troll.analysis.pooling import PREDICTION, Pooled
from troll.analysis.render.formats import MINUS, counted, points, probability, significant
from troll.analysis.statistics import Interval

_IN_POINTS = {name for name, summary in SUMMARIES.items() if summary.unit == SHARE} | {
    f"mean/{name}" for name, metric in METRICS.items() if metric.in_points
}
"""Metrics with differences in percentage points, like those of pass@k."""
_NAMED = 4
"""Settings that a reason names individually."""


def _shown(claim: Claim) -> tuple[Callable[[float], str], str]:
    """Returns the formatter and the unit of a claim's differences."""
    return points if _times_100(claim) else _signed, _unit(claim)


def _times_100(claim: Claim) -> bool:
    """Returns whether differences are given in percent or percentage points."""
    return claim.relative or (_is_share(claim.metric) and not _in_decades(claim))


def _is_share(metric: str) -> bool:
    return metric in _IN_POINTS or metric.rpartition("/")[2].startswith("pass@")


def _in_decades(claim: Claim) -> bool:
    return claim.across is not None and claim.across.statistic == "usable"


def span(entry: ClaimVerdict) -> str:
    """Returns the smallest and the largest difference among the settings."""
    if not entry.decision.settings:
        return ""
    return show_range(entry.claim, [setting.effect for setting in entry.decision.settings])


def show_range(claim: Claim, differences: Sequence[float]) -> str:
    """Returns the smallest and the largest of some differences in the unit of the claim's metric."""
    show, unit = _shown(claim)
    ends = dict.fromkeys((show(min(differences)), show(max(differences))))
    return " to ".join(ends) + unit


def label(entry: ClaimVerdict) -> str:
    """Returns the verdict for display, of a contrary with its size: "above by 20.7 points"."""
    decision = entry.decision
    if decision.verdict != "the contrary holds":
        return decision.label
    show, unit = _shown(entry.claim)
    effects = [setting.effect for setting in decision.settings]
    if all(decision.refuted_in) and entry.claim.direction == "equivalent" and min(effects) < 0 < max(effects):
        above = sum(effect > 0 for effect in effects)  # an average would say nothing
        return f"the contrary holds: above in {above}, below in {len(effects) - above}"
    estimate = decision.pooled.estimate if decision.pooled else sum(effects) / len(effects)
    size = show(abs(estimate)).lstrip("+")
    only = "only " if entry.claim.margin and entry.claim.direction != "equivalent" else ""
    return f"the contrary holds: {'above' if estimate > 0 else 'below'} by {only}{size}{unit}"


def why(entry: ClaimVerdict) -> str:
    """Returns the reason for a verdict: the average and the results by setting, or what is missing."""
    claim, decision = entry.claim, entry.decision
    if decision.verdict == "not run" and entry.no_data_reason:
        return entry.no_data_reason
    if decision.verdict == "not run":
        equal = " with equal late KL" if claim.at_equal_kl else ""
        both = f" and {claim.baseline}" if isinstance(claim.baseline, str) else ""
        return f"no runs of {claim.trust_region}{both}{equal} where the claim applies"
    few = [setting for setting in decision.settings if setting.seeds < claim.least_seeds]
    if few:
        least = min(setting.seeds for setting in few)
        where = f"{_of(len(few), len(decision.settings))}, the claim asks for {claim.least_seeds}"
        return f"{counted(least, 'seed')} in {where}; {span(entry)}"
    parts = [average(entry), levels(entry)] if decision.verdict == "depends" else [average(entry)]
    parts += [_holding(entry), both_below(entry)]
    alone = decision.pooled is None and decision.verdict != "depends"
    parts += [span(entry)] if alone or decision.verdict == "supported everywhere" else []
    parts += [_missing(entry)] if decision.verdict == "inconclusive" else []
    return "; ".join(part for part in parts if part)


def on_average(entry: ClaimVerdict) -> str:
    """Returns the average over settings with its interval; empty without an average."""
    pooled = entry.decision.pooled
    if pooled is None:
        return ""
    return f"{show_difference(entry.claim, pooled)} on average"


def average(entry: ClaimVerdict) -> str:
    """Returns the average over settings with its interval and the prediction interval."""
    pooled = entry.decision.pooled
    if pooled is None:
        return ""
    show, _ = _shown(entry.claim)
    predicted = f"[{show(pooled.predicted_low)}, {show(pooled.predicted_high)}]"
    return f"{on_average(entry)}, {PREDICTION} {predicted}"


def short(entry: ClaimVerdict) -> str:
    """Returns the difference or average with its interval; without an average, the extreme differences."""
    settings = entry.decision.settings
    if len(settings) == 1:
        return show_difference(entry.claim, settings[0].interval())
    count = f"{len(settings)} settings"
    return f"{on_average(entry)} over {count}" if entry.decision.pooled else f"{span(entry)} in {count}"


def levels(entry: ClaimVerdict, *, most: int | None = None) -> str:
    """Returns the means at the levels that a verdict depends on; only the extremes if more than ``most``."""
    show, unit = _shown(entry.claim)
    means_by_level = entry.decision.levels or {}
    if most is not None and len(means_by_level) > most:
        ends = (choose(means_by_level, key=means_by_level.__getitem__) for choose in (min, max))
        means_by_level = {name: means_by_level[name] for name in ends}
    means = [f"{name} {show(mean)}" for name, mean in means_by_level.items()]
    p = probability(entry.decision.p)
    chance = "" if math.isnan(entry.decision.p) else f" (p {p.replace('<', '< ') if '<' in p else f'= {p}'})"
    return f"{', '.join(means)}{unit}{chance}"


def _holding(entry: ClaimVerdict) -> str:
    """In how many single settings the claim or its contrary is shown, and in which it is not."""
    decision, count = entry.decision, len(entry.decision.settings)
    shown, refuted = sum(decision.shown_in), sum(decision.refuted_in)
    if count == 1 and not refuted:
        return "holds in its one setting" if shown else "its one setting does not decide it"
    parts = [] if refuted == count else [f"no single setting of {count} shows it by itself"]
    if shown:
        parts = [f"holds in {_every(count) if shown == count else _of(shown, count)}"]
    parts += [part for part in (_contrary(entry), collapsed(entry)) if part]
    if decision.verdict == "supported on average" and shown:
        parts.append(f"not shown in {_without(entry)}")
    return ", ".join(parts)


def both_below(entry: ClaimVerdict) -> str:
    """For claims of "higher": in which settings the method ends below its base model; otherwise empty."""
    if entry.claim.direction != "higher" or not any(entry.below_base):
        return ""
    tasks = [setting.coordinates["task"] for setting in entry.decision.settings]
    below = [task for task, flag in zip(tasks, entry.below_base, strict=True) if flag]
    parts = [_of(below.count(task), tasks.count(task), f" on {task}") for task in dict.fromkeys(below)]
    return f"on average over seeds it ends below its own base model in {' and '.join(parts)}"


def collapsed(entry: ClaimVerdict) -> str:
    """States that the baseline collapsed in every setting that shows the contrary; empty if it did not."""
    refuted = entry.decision.refuted_in
    if not any(refuted) or not entry.baseline_below_base:
        return ""
    if not all(fallen for fallen, flag in zip(entry.baseline_below_base, refuted, strict=True) if flag):
        return ""
    return f"where {_name(entry.claim).rstrip('*')} has fallen below its base model"


def _contrary(entry: ClaimVerdict) -> str:
    """In how many settings the contrary is shown; for claims of equivalence, on which side of the margin."""
    settings, flags = entry.decision.settings, entry.decision.refuted_in
    refuted = [setting for setting, flag in zip(settings, flags, strict=True) if flag]
    if not refuted:
        return ""
    where = str(len(refuted))
    if len(refuted) == len(settings):
        where = _every(len(refuted)) if len(refuted) > 1 else "its one setting"
    if entry.claim.direction != "equivalent":
        return f"the contrary is shown in {where}"
    sides = sorted({"above" if setting.effect > 0 else "below" for setting in refuted})
    return f"outside the margin in {where} ({' or '.join(sides)})"


def _without(entry: ClaimVerdict) -> str:
    """Returns the settings that do not show the claim; a condition is named if none of its settings does."""
    settings, shown = entry.decision.settings, entry.decision.shown_in
    left = [setting for setting, flag in zip(settings, shown, strict=True) if not flag]
    every, without = _by_condition(settings), _by_condition(left)
    whole = {name: len(of) for name, of in every.items() if len(of) > 1 and of == without.get(name)}
    names = [
        f"any of {count} {f'from {name}' if ' to ' in name else f'{name} ones'}"
        for name, count in whole.items()
    ]
    rest = [setting for setting in left if setting.coordinates["condition"] not in whole]
    names += [_short(setting, settings) for setting in rest[:_NAMED]]
    names += [f"{len(rest) - _NAMED} more"] if len(rest) > _NAMED else []
    return ", ".join(names)


def _by_condition(settings: Sequence[PairedDifferences]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for setting in settings:
        names.setdefault(setting.coordinates["condition"], []).append(setting.name)
    return names


def _short(setting: PairedDifferences, others: Sequence[PairedDifferences]) -> str:
    """Returns a setting's name from the coordinates in which the claim's settings differ."""
    differing = [
        value
        for name, value in setting.coordinates.items()
        if len({other.coordinates[name] for other in others}) > 1
    ]
    return " / ".join(differing) or setting.name


def _missing(entry: ClaimVerdict) -> str:
    """Returns how many more seeds would decide which way, if differences stay as they are."""
    decision, settings = entry.decision, entry.decision.settings
    if decision.seeds is not None:
        missing = decision.seeds - min(setting.seeds for setting in settings)
        more = f"about {counted(missing, 'more seed')} in each setting would"
        if decision.deciding is None or len(settings) == 1:
            return f"{more} decide, if differences stay as they are"
        outcome = {
            "average": "decide the average",
            "contrary": f"show the contrary in {counted(least_refuted(settings), 'setting')}",
            "claim": "show the claim in every setting",
        }[decision.deciding]
        text = f"{more} {outcome}, if differences stay as they are"
        if decision.deciding == "average" or decision.pooled is None or decision.average_decidable:
            return text
        return f"{text}; no number up to {MOST_SEEDS:,} would decide the average"
    more = "; more settings might" if len(settings) > 1 else ""
    return f"even {MOST_SEEDS:,} seeds in each setting might not decide{more}"


def _every(settings: int) -> str:
    return "both settings" if settings == 2 else f"all {settings} settings"


def _of(shown: int, settings: int, where: str = "") -> str:
    if where and shown == settings > 1:
        return f"{_every(settings)}{where}"
    if where:
        return f"the one setting{where}" if settings == 1 else f"{shown} of {settings} settings{where}"
    every = counted(settings, "setting")
    return every if shown == settings else f"{shown or 'none'} of {every}"


def _name(claim: Claim) -> str:
    return claim.baseline if isinstance(claim.baseline, str) else f"{claim.baseline:g}"


def show_difference(claim: Claim, interval: Interval | Pooled) -> str:
    """Returns an interval in the unit of the claim's metric, such as "+3.1 [+0.2, +6.0] points"."""
    show, unit = _shown(claim)
    if math.isnan(interval.low):
        return f"{show(interval.estimate)}{unit}, no interval"
    return f"{show(interval.estimate)} [{show(interval.low)}, {show(interval.high)}]{unit}"


def _signed(value: float) -> str:
    text = significant(value)
    return text if text.startswith(MINUS) or value == 0 else f"+{text}"


def measure(claim: Claim) -> str:
    """Returns the quantity that a claim compares, and the side that it claims."""
    how = "relative to" if claim.relative else "minus"
    margin = f", margin {(100 if _times_100(claim) else 1) * claim.margin:g}{_unit(claim)}"
    what, across = claim.metric, claim.across
    if across is not None and _in_decades(claim):
        what = f"decades of {across.setting} with {100 * across.share:g} % of the best gain in {what}"
    elif across is not None:
        what = f"{what} across {across.setting},{_unit(claim)}"
    equal = (
        f", where the larger late KL is at most {1 + WITHIN:g} times the smaller" if claim.at_equal_kl else ""
    )
    text = f"{what}, {claim.trust_region} {how} {_name(claim)}{equal}; claimed: {claim.direction}"
    return text + (margin if claim.margin else "")


def _unit(claim: Claim) -> str:
    """Returns the unit of a claim's differences, with a leading space."""
    if claim.relative:
        return " %"
    if _in_decades(claim):
        return " decades"
    suffix = SUMMARIES[claim.metric].suffix if claim.metric in SUMMARIES else ""
    unit = " points" if _is_share(claim.metric) else suffix
    return unit if claim.across is None else f"{unit} {claim.across.unit}"
