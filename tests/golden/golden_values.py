"""What amd.json and intel.json hold, and how what is made now is compared with them; light, without torch."""

import json
import math
from pathlib import Path

# Processors of one maker round alike. Where its record is outdated, the other's counts, to a tolerance.
PATHS = {
    "AuthenticAMD": Path(__file__).with_name("amd.json"),
    "GenuineIntel": Path(__file__).with_name("intel.json"),
}
CHANGED = (
    "numbers changed: raise NUMERICS in troll/common/numerics.py and make the golden runs again "
    "(make golden), or find the cause: "
)
AGAIN = "make the golden runs again (make golden): "

# Other code, of a processor or of a package, rounds otherwise, and training amplifies that: over the first
# rollout batch to less than this, seen with ATen's code for AVX-512 and for no extension. A token that comes
# to lie on the other side of a bound moves a fraction by less than the second one.
FIRST_STEPS = 4
RELATIVE, ABSOLUTE = 0.02, 0.01


def recorded_for(maker, numerics):
    """The record that a processor of this maker is compared with.

    What it lacks, since a rule was added on a processor of another maker, is that of the other record.
    """
    own = PATHS.get(maker, PATHS["AuthenticAMD"])
    records = [json.loads(path.read_text()) for path in dict.fromkeys([own, *PATHS.values()])]
    present = [record for record in records if not outdated(record, numerics)] or records[:1]
    first, *others = present
    elsewhere_made = {name: run for record in others for name, run in record["runs"].items()}
    missing = {
        name: run | {"other": True} for name, run in elsewhere_made.items() if name not in first["runs"]
    }
    return first | {"runs": first["runs"] | missing}


def entries(values):
    """The base models and the runs, by name."""
    return {**values["models"], **values["runs"]}


def difference(name, recorded, found):
    """Where an entry does not equal the recorded one to the last bit, as one line; None where it does."""
    if recorded is None or found is None:
        return f"{AGAIN}{name}: {'not recorded yet' if recorded is None else 'there is no such run any more'}"
    where = _first(recorded, found)
    if where is None and recorded.get("logged") != found.get("logged"):
        return f"{AGAIN}{name}: other metrics are logged, with equal numbers where both are"
    if where is None:
        return None
    if recorded["configuration"] != found["configuration"]:
        return f"{AGAIN}{name}: its configuration changed, and with it its numbers"
    return f"{CHANGED}{name}: {where}"


def _first(recorded, found):
    """The first value that differs, as it was and as it is."""
    then, now = recorded["metrics"], found["metrics"]
    both = [metric for metric in then if metric in now]
    for step in range(max(len(values[metric]) for values in (then, now) for metric in both)):
        for metric in both:
            was, is_now = (_at(values[metric], step) for values in (then, now))
            if repr(was) != repr(is_now):  # unlike !=, this tells -0.0 from 0.0, and takes a NaN for itself
                return f"step {step + 1}, {metric}: {was!r} and {is_now!r}"
    unlike = recorded.get("logged") != found.get("logged")
    for group in ("digests", "passed"):
        then, now = recorded.get(group, {}), found.get(group, {})
        for key in [*then, *(now.keys() - then.keys())]:
            if then.get(key) != now.get(key) and not (unlike and key == "all metrics"):
                return f"{key}: {then.get(key)} and {now.get(key)}"
    return None


def _at(column, step):
    return column[step] if step < len(column) else None


def far(name, recorded, found):
    """Where the first steps of an entry differ by more than rounding does; None where they do not."""
    for step in range(FIRST_STEPS):
        for metric, column in recorded["metrics"].items():
            was, is_now = (_at(values, step) for values in (column, found["metrics"].get(metric, [])))
            numbers = isinstance(was, int | float) and isinstance(is_now, int | float)
            if was != is_now and not (
                numbers and math.isclose(was, is_now, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
            ):
                return f"{CHANGED}{name}: step {step + 1}, {metric}: {was!r} and {is_now!r}, beyond rounding"
    return None


ROUNDING = ("capability", "maker", "torch", "numpy")
"""What rounds. A number that a newer version of another package changes has to be noticed, not tolerated."""


def elsewhere(recorded, found):
    """Why numbers may differ and nothing is wrong: code for another processor, other arithmetic."""
    then, now = recorded["made_with"], found["made_with"]
    names = [name for name in ROUNDING if name in then and now.get(name) != then[name]]
    return [f"{name} {now.get(name)} instead of {then[name]}" for name in names]


def outdated(recorded, numerics):
    """What is wrong where the recorded values are of another version; None where they are not."""
    if recorded["numerics"] == numerics:
        return None
    return f"{AGAIN}they are of version {recorded['numerics']} of the numbers, and the source has {numerics}"


def refusal(recorded, found):
    """Why what was made may not be recorded; None where it may."""
    if found["made_with"]["capability"] != "AVX2":
        return f"the golden runs are made with AVX2 code; this was {found['made_with']['capability']}"
    if found["made_with"]["maker"] not in PATHS:
        return f"the golden runs are made on processors of {' and '.join(PATHS)}"
    if found["left_out"]:
        return f"the golden runs are made all or none: {found['left_out']}"
    if recorded is None or outdated(recorded, found["numerics"]) or elsewhere(recorded, found):
        return None
    then, now = entries(recorded), entries(found)
    own = [name for name, run in then.items() if name in now and not run.get("other")]
    lines = [difference(name, then[name], now[name]) for name in own]
    return next((line for line in lines if line and line.startswith(CHANGED)), None)


def text_of(values, indent=""):
    """JSON with a line for each list: the steps of a metric side by side."""
    if not isinstance(values, dict) or not values:
        return json.dumps(values)
    inner = f"{indent} "
    lines = [f"{inner}{json.dumps(name)}: {text_of(value, inner)}" for name, value in values.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}" + ("" if indent else "\n")
