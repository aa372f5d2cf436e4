"""Released measurements are held to their data: what differs is named, and can be written again."""

import json
import shutil
from pathlib import Path

import pytest
from refusals import error_of, refused
from typer.testing import CliRunner

from troll.cli.app import app
from troll.operations.released import check_measurements

MEASURED = ("cost", "approximation/zipf")


@pytest.fixture
def graders(repository: Path, tmp_path: Path) -> Path:
    shutil.copytree(repository / "results/released/graders", tmp_path / "graders")
    return tmp_path / "graders"


@pytest.fixture
def measured(repository: Path, tmp_path: Path) -> Path:
    for name in MEASURED:
        shutil.copytree(
            repository / "results/released/testbed-ablations" / name, tmp_path / "measured" / name
        )
    return tmp_path / "measured"


def test_the_released_audit_is_that_of_its_report(graders):
    compared = {path.name for path in check_measurements(graders)}
    assert compared == {"audit.csv", "audit.md"}
    result = CliRunner().invoke(app, ["release", "check", str(graders), "--release"])
    assert result.exit_code == 0, result.output
    assert result.output.endswith("graders: 2 files are what the released data give\n")
    again = CliRunner().invoke(app, ["release", "check", str(graders), "--write"])
    assert again.exit_code == 0 and again.output.endswith("graders: 0 files written\n")


def test_another_verdict_than_the_reports_is_refused(graders):
    report = json.loads((graders / "audit.json").read_text())
    report["cases"][0]["rate"] = 0.25
    (graders / "audit.json").write_text(json.dumps(report))
    with refused(graders, "audit.csv", "audit.md"):
        check_measurements(graders)


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("cost/cost.md", "Met: time", "Missed: time"),
        ("cost/cost_step.md", "with no token projected", "with all tokens projected"),
        ("approximation/zipf/approximation.md", "| KL error |", "| KL mistake |"),
    ],
)
def test_what_was_changed_by_hand_is_named_and_can_be_written_again(measured, path, old, new):
    text = (measured / path).read_text()
    assert old in text
    (measured / path).write_text(text.replace(old, new))
    with refused(measured, path):
        check_measurements(measured)
    assert check_measurements(measured, write=True) == [measured / path]
    assert (measured / path).read_text() == text


def test_a_changed_number_reaches_table_and_figure(measured):
    data = measured / "approximation/zipf/approximation.csv"
    lines = data.read_text().splitlines()
    column = lines[0].split(",").index("kl_error")
    cells = lines[1].split(",")
    cells[column] = "0.5"
    data.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
    with refused(measured, "approximation.md", "approximation.png"):
        check_measurements(measured)


def test_a_missing_file_is_named(measured):
    (measured / "cost/cost.md").unlink()
    with refused(measured, "cost/cost.md"):
        check_measurements(measured)
    (measured / "cost/cost_step.md").unlink()
    with refused("cost_step.md", "cost_step.csv"):
        check_measurements(measured)


def test_where_nothing_was_released_there_is_nothing_to_check(tmp_path):
    error_of(CliRunner().invoke(app, ["release", "check", str(tmp_path)]), tmp_path)


GPU = {
    "about": {
        "card": "NVIDIA H100",
        "commit": "0123456789",
        "date": "2026-11-27",
        "seconds": 301.4,
        "torch": "2.11.0",
        "triton": "3.6.0",
        "transformers": "5.17.0",
        "trl": None,
        "sizes": {"tokens": 8192, "width": 1024, "vocab": 151936, "shape": "qwen3-0.6b", "fast": "auto"},
    },
    "limits": {"tflops": 742.3, "terabytes_per_s": 2.94, "launch_us": 4.2},
    "goals": [
        {"goal": "time of TROLL over clip's", "value": 1.054, "limit": 1.1},
        {"goal": "waits of the host", "value": 3, "limit": 0},
        {"goal": "peak memory over clip's", "value": 1.5, "limit": None},
    ],
    "rows": [
        {
            "section": "Head",
            "name": "clip",
            "backend": "auto",
            "ms": 17.31,
            "ms_low": 17.2,
            "ms_high": 18.04,
            "limit_ms": 13.74,
            "ratio": 1.26,
            "peak_mib": 457.4,
            "launches": 133,
            "waits": 2,
            "waits_at": {"head.py:120": 2},
            "errors": {"dH": [0.0018, 0.005]},
        },
        {"section": "Head", "name": "TROLL", "backend": "torch", "failed": "OutOfMemoryError: 9 GiB"},
        {"section": "Equality", "name": "twice", "backend": "auto", "errors": {"unequal": ["nan", None]}},
    ],
    "skipped": ["Sharding"],
}


def test_the_page_of_a_gpu_says_what_was_measured_met_failed_and_left_out(tmp_path):
    (tmp_path / "gpu_check.json").write_text(json.dumps(GPU))
    assert check_measurements(tmp_path, write=True) == [tmp_path / "README.md"]
    text = (tmp_path / "README.md").read_text()
    for line in (
        "# One NVIDIA H100",
        "at commit `0123456` (torch 2.11.0, triton 3.6.0, transformers 5.17.0, trl not installed)",
        "| time of TROLL over clip's | 1.05 | 1.10 | met |",
        "| waits of the host | 3.00 | 0 | missed |",
        "| peak memory over clip's | 1.50 | – |  |",
        "| clip | auto | 17.3 [17.2, 18.0] | 13.7 | 1.26 | 457 | 133 | 2 | dH 0.00180, waits at head.py:120",
        "| TROLL | torch | – | – | – | – | – | – | **failed**: OutOfMemoryError: 9 GiB |",
        "| twice | auto | unequal nan |",
        "No time was left for: Sharding.",
    ):
        assert line in text, f"{line} not in\n{text}"
    (tmp_path / "README.md").write_text(text.replace("missed", "met"))
    with refused(tmp_path, "README.md"):
        check_measurements(tmp_path)


def test_the_released_page_of_a_gpu_is_that_of_its_measurements(repository):
    if not (repository / "results/released/gpu/gpu_check.json").exists():
        pytest.skip("no measurement is released")
    assert check_measurements(repository / "results/released/gpu") == [
        repository / "results/released/gpu/README.md"
    ]
