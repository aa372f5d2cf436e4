"""The schema and the page of settings are those of the models, and the experiment files are valid by it."""

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from troll.cli.schema import reference, schema_text


@pytest.mark.parametrize("path", ["troll/experiment/experiment.schema.json", "docs/configuration.md"])
def test_generated_files_are_up_to_date(repository, tmp_path, path):
    written = tmp_path / Path(path).name
    # In a process of its own: here other tests may have registered rules of theirs.
    subprocess.run([Path(sys.executable).parent / "troll", "schema", "--out", written], check=True)
    assert (repository / path).read_text() == written.read_text(), f"out of date: `make docs` writes {path}"


def test_the_schema_takes_every_experiment_file_and_refuses_mistakes(repository):
    schema = json.loads(schema_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    files = [
        path
        for path in (repository / "workflow/config").glob("*.yaml")
        if path.stem != "leaderboard" and not path.stem.endswith("claims")
    ]
    assert len(files) >= 3
    for path in files:
        text = path.read_text()
        jsonschema.validate(yaml.safe_load(text), schema)
        line = "# yaml-language-server: $schema=../../troll/experiment/experiment.schema.json"
        assert text.splitlines()[0] == line, path
    good = yaml.safe_load(files[0].read_text())
    for wrong in ({"sseeds": [1]}, {"seeds": []}, {"tracking": "tensorbord"}, {"training": {"keep": 0}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(good | wrong, schema)


def test_every_setting_has_a_meaning():
    rows = [line for line in reference().splitlines() if line.startswith("| `") and line.count(" | ") == 3]
    settings = [row for row in rows if not row.endswith("| none |")]
    assert len(settings) > 60
    assert not [row for row in settings if row.endswith("|  |")], "add a description to the field"
