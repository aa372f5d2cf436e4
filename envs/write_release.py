"""Builds a release in ``dist/``: ``python envs/write_release.py [--tag v0.3.0]``; wheel, sdist, notes.

First checks that all files agree on version and date: pyproject.toml, the package, CITATION.cff, .zenodo.json
and the first section of CHANGELOG.md that is not "Unreleased".
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
_SECTION = re.compile(
    r"^## (\d+\.\d+\.\d+)(?: \((\d{4}-\d\d-\d\d)\))?\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL
)


def sections(root: Path) -> list[tuple[str, str, str]]:
    """Returns version, date (may be empty) and text of the released sections, newest first."""
    found = _SECTION.findall((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    return [(version, date, text.strip()) for version, date, text in found]


def stated(root: Path) -> dict[str, dict[str, Any]]:
    """Returns what each file says about a release, as fields by file; equal fields must agree."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    package = re.findall(r'^__version__ = "(.+)"$', (root / "troll/__init__.py").read_text(), re.MULTILINE)
    citation = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))
    archive = json.loads((root / ".zenodo.json").read_text(encoding="utf-8"))
    version, date, _ = sections(root)[0]
    return {
        "pyproject.toml": {
            "version": project["version"],
            "license": project["license"],
            "keywords": sorted(project["keywords"]),
        },
        "troll/__init__.py": {"version": package[0]},
        "CITATION.cff": {
            "version": str(citation["version"]),
            "date": str(citation["date-released"]),
            "license": citation["license"],
            "title": citation["title"],
            "authors": [author["name"] for author in citation["authors"]],
            "keywords": sorted(citation["keywords"]),
        },
        ".zenodo.json": {
            "version": archive["version"],
            "date": archive["publication_date"],
            "license": archive["license"],
            "title": archive["title"],
            "authors": [creator["name"] for creator in archive["creators"]],
            "keywords": sorted(archive["keywords"]),
        },
        "CHANGELOG.md": {"version": version, "date": date},
    }


def disagreements(root: Path, tag: str | None = None) -> list[str]:
    """Returns one line per field with different values; no lines if a release can be made."""
    files = stated(root)
    if tag is not None:
        files = {"the tag": {"version": tag.removeprefix("v")}, **files}
    fields: dict[str, dict[str, list[str]]] = {}
    for file, values in files.items():
        for field, value in values.items():
            fields.setdefault(field, {}).setdefault(str(value), []).append(file)
    return [
        f"{field}: " + "; ".join(f"{value} in {', '.join(places)}" for value, places in found.items())
        for field, found in fields.items()
        if len(found) > 1
    ]


def build(root: Path, out: Path) -> list[Path]:
    """Builds sdist and wheel; the wheel from the sdist, so that it contains no stale files."""
    out.mkdir(parents=True, exist_ok=True)
    hook = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", hook, str(out)], cwd=root, check=True, stdout=subprocess.DEVNULL)
    (sdist,) = out.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    command = [*pip, "--no-build-isolation", "--no-index", "--wheel-dir", str(out), str(sdist)]
    subprocess.run(command, check=True)
    return sorted(out.glob("troll-*"))


def main() -> None:
    """Checks the versions, then builds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tag", help="tag of the release; must match the version")
    tag = parser.parse_args().tag
    wrong = disagreements(ROOT, tag)
    if wrong:
        raise SystemExit("\n".join(f"error: {line}" for line in wrong))
    out = ROOT / "dist"
    shutil.rmtree(out, ignore_errors=True)
    built = build(ROOT, out)
    (out / "notes.md").write_text(sections(ROOT)[0][2] + "\n", encoding="utf-8")
    for name in ("CITATION.cff", ".zenodo.json"):
        shutil.copy(ROOT / name, out / name.lstrip("."))
    print("\n".join(str(path.relative_to(ROOT)) for path in built))


if __name__ == "__main__":
    main()
