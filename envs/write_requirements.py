"""Writes the pins with the hashes of their files: ``python envs/write_requirements.py`` (queries PyPI).

``setup.sh`` installs from these files, so that pip only accepts files that were published when the pins were
made. torch is left out, because its CPU builds come from several indexes with different files.
"""

import json
import re
import urllib.request
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from write_conda import pins

HERE = Path(__file__).parent
FILES = {
    "constraints.txt": "requirements.txt",
    "constraints-vllm.txt": "requirements-vllm.txt",
}
_INDEX = "https://pypi.org/simple"
_PYTHONS = ("cp311", "cp312", "cp313")
_PLATFORM = re.compile(r"any|(many)?linux.*_(x86_64|aarch64)|macosx_.*_(arm64|universal2|x86_64)")
_HEAD = """# The pins of {pins} with the SHA-256 of the files for CPython 3.11 to 3.13 on Linux or macOS.
# Written by `python envs/write_requirements.py`.
"""


def files(name: str, version: str) -> dict[str, str]:
    """Returns SHA-256 by file name: the suitable wheels of a version, or its source if there are none."""
    request = urllib.request.Request(
        f"{_INDEX}/{name}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        listed: list[dict[str, Any]] = json.load(answer)["files"]
    source = rf"(?i){re.sub('-', '[-_.]', name)}-{re.escape(version)}\.(tar\.gz|zip)"
    wheels, sources = {}, {}
    for file in listed:
        path, digest = file["filename"], file["hashes"]["sha256"]
        if path.endswith(".whl"):
            try:
                _, found, _, tags = parse_wheel_filename(path)
            except InvalidWheelFilename:
                continue
            if str(found) == version and any(map(_suits, tags)):
                wheels[path] = digest
        elif re.fullmatch(source, path):
            sources[path] = digest
    if not (wheels or sources):
        raise SystemExit(f"error: {name} {version}: no file at {_INDEX}")
    return wheels or sources


def _suits(tag: Tag) -> bool:
    abi3 = tag.abi == "abi3" and re.fullmatch(r"cp3\d|cp31[0-3]", tag.interpreter)
    interpreter = tag.interpreter in {*_PYTHONS, "py3", "py2.py3"} or abi3
    plain = not tag.abi.endswith("t")  # not a free-threaded build
    return bool(interpreter and plain and _PLATFORM.fullmatch(tag.platform))


def line(name: str, version: str, found: Mapping[str, str]) -> str:
    """Returns a requirement with its hashes, only for Linux if all files are for Linux."""
    linux = all("linux" in path for path in found)
    marker = ' ; sys_platform == "linux"' if linux else ""
    hashes = "".join(f" \\\n    --hash=sha256:{digest}" for digest in sorted(set(found.values())))
    return f"{name}=={version}{marker}{hashes}\n"


def write(source: str, target: str) -> None:
    """Writes the requirements for one file of pins."""
    wanted = {name: version for name, version in pins(source).items() if name != canonicalize_name("torch")}
    with ThreadPoolExecutor(8) as pool:
        found: Iterable[dict[str, str]] = pool.map(files, wanted, wanted.values())
        lines = [line(*item, files) for item, files in zip(wanted.items(), found, strict=True)]
    (HERE / target).write_text(_HEAD.format(pins=source) + "".join(lines))


if __name__ == "__main__":
    for pair in FILES.items():
        write(*pair)
