"""The schema and the page of settings are those of the models, and the experiment files are valid by it."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from troll.algorithms.advantages import ESTIMATORS
from troll.algorithms.trust_regions import TRUST_REGIONS
from troll.operations.schema import reference, schema_text, setting_table


@pytest.mark.parametrize("path", ["troll/experiment/experiment.schema.json", "docs/configuration.md"])
def test_generated_files_are_up_to_date(repository, tmp_path, path, troll):
    written = tmp_path / Path(path).name
    # In a process of its own: here other tests may have registered rules of theirs.
    assert troll("release", "schema", "--out", written).returncode == 0
    assert (repository / path).read_text() == written.read_text(), f"out of date: `make docs` writes {path}"


def test_the_schema_takes_every_experiment_file_and_refuses_mistakes(repository):
    schema = json.loads(schema_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    files = [
        path
        for path in (repository / "workflow/config").glob("*.yaml")
        if path.stem not in ("duel",) and not path.stem.endswith("claims")
    ]
    assert len(files) >= 3
    for path in files:
        text = path.read_text()
        validator.validate(yaml.safe_load(text))
        line = "# yaml-language-server: $schema=../../troll/experiment/experiment.schema.json"
        assert text.splitlines()[0] == line, path
    good = yaml.safe_load(files[0].read_text())
    rules = {"mine": {"rule": "troll", "settings": {"kl_bound": 0.1}}, "own": {"rule": "mine.py:f"}}
    validator.validate(good | {"trust_regions": rules})
    for wrong in (
        {"sseeds": [1]},
        {"seeds": []},
        {"tracking": "tensorbord"},
        {"training": {"keep": 0}},
        {"tasks": {"chains": {"settings": {"operation": [2]}}}},
        {"tasks": {"locks": {"settings": {"dials": 7}}}},
        {"trust_regions": {"mine": {"rule": "troll", "settings": {"kl_bund": 0.1}}}},
        {"trust_regions": {"mine": {"rule": "clip", "settings": {"dual_clip": 0.5}}}},
        {"estimators": {"mine": {"rule": "gae", "settings": {"lam": 1.5}}}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(good | wrong)


def test_every_setting_has_a_meaning():
    rows = [line for line in reference().splitlines() if line.startswith("| `") and line.count(" | ") == 3]
    settings = [row for row in rows if not row.endswith("| none |")]
    assert len(settings) > 60
    assert not [row for row in settings if row.endswith("|  |")], "add a description to the field"


@pytest.mark.parametrize("registry", [TRUST_REGIONS, ESTIMATORS])
def test_every_setting_of_a_rule_has_a_meaning(registry):
    # A rule that another test has made from text is in no module.
    own = {
        name: info for name, info in registry.items() if (info.function.__module__ or "").startswith("troll.")
    }
    rows = list(setting_table(own))[2:]
    assert len(rows) == sum(len(info.settings) for info in own.values()) >= 10
    assert set(rows) <= set(reference().splitlines())
    assert not [row for row in rows if row.endswith("|  |")], "describe it under Settings: in the docstring"


@pytest.mark.parametrize("section", ["Args", "Settings", "Keyword Args"])
def test_a_rule_in_a_file_shows_what_its_docstring_says(tmp_path, section, troll):
    (tmp_path / "mine.py").write_text(
        "from troll.algorithms.ranges import NotNegative\n"
        "def wall(new, old, advantages, mask, *, coefficient: NotNegative = 1.0, late=True):\n"
        f'    """A wall.\n\n    {section}:\n        coefficient (float): weight of the pull:\n'
        '            a | b.\n\n    Returns:\n        late: no setting.\n    """\n'
    )
    shown = troll("check", "--rule", "mine.py:wall", cwd=tmp_path, check=True).stdout
    assert shown.splitlines()[2:] == [
        "| `mine.py:wall` | `coefficient` | a number >= 0 | `1` | weight of the pull: a \\| b |",
        "| `mine.py:wall` | `late` | true or false | `true` |  |",
    ]
