"""The two tidy tables: their columns, and how they are written and read.

``runs`` has one row per run, metric and step, ``items`` one per run and test problem.
"""

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from troll.analysis.data.provenance import DIGESTS
from troll.analysis.data.run_files import COORDINATES
from troll.common.errors import UserError
from troll.common.files import atomic_path

BASE = "base"
"""Trust region recorded for rows of the base model, which no rule has trained."""

GROUP = ("model", "task", "condition", "estimator", "trust_region")
"""What a line of a table stands for: all seeds of one method in one setting."""
PROVENANCE = ("git_commit", "versions", "hardware")
"""Columns that say what made a row: text, or JSON of the manifest's block; empty where it has none."""

# Categories, because a table of a million rows repeats a few hundred names.
_STRING, _INTEGER, _FLOAT = "category", "Int64", "float64"
_COORDINATE_TYPES = {name: _INTEGER if name == "seed" else _STRING for name in COORDINATES}
RUN_COLUMNS: Mapping[str, str] = {
    **_COORDINATE_TYPES,
    "rule": _STRING,
    "step": _INTEGER,
    "rollout_batch": _INTEGER,
    "wall_s": _FLOAT,
    "metric": _STRING,
    "value": _FLOAT,
    "n_items": _INTEGER,
    "source": _STRING,
    **{f"digest_{name}": _STRING for name in DIGESTS},
    **dict.fromkeys(PROVENANCE, _STRING),
    "mixed": "bool",
}
ITEM_COLUMNS: Mapping[str, str] = {
    **_COORDINATE_TYPES,
    "rule": _STRING,
    "task_id": _STRING,
    "n": _INTEGER,
    "c": _INTEGER,
    "mixed": "bool",
}
_ARROW = {_STRING: pa.string(), _INTEGER: pa.int64(), _FLOAT: pa.float64(), "bool": pa.bool_()}
_FORMER = {
    "outside": "clip_fraction",
    "setting/training/passes": "setting/training/num_iterations",
}
"""Metrics of tables that were written under other names, and what they are called now."""
_FORMER_PREFIX = ("certificate/", "constraint_check/")
_CSV_DIGEST_LENGTH = 12


def read_runs(path: Path) -> pd.DataFrame:
    """Reads a table of metrics written by ``collect``; metrics under former names get their present ones."""
    runs = _read_parquet(path, RUN_COLUMNS)
    # Runs of an older version may stand beside others, so that two names become one.
    runs["metric"] = runs["metric"].map(_present_name).astype("category")
    return runs


def _present_name(metric: str) -> str:
    old, new = _FORMER_PREFIX
    return new + metric.removeprefix(old) if metric.startswith(old) else _FORMER.get(metric, metric)


def read_items(path: Path) -> pd.DataFrame:
    """Reads a table of test problems written by ``collect``."""
    return _read_parquet(path, ITEM_COLUMNS)


def write_parquet(frame: pd.DataFrame, path: Path, columns: Mapping[str, str]) -> None:
    """Writes a table atomically, with explicit types and without metadata that names library versions."""
    schema = pa.schema([(name, _ARROW[dtype]) for name, dtype in columns.items()])
    table = pa.Table.from_pandas(frame, schema=schema, preserve_index=False).replace_schema_metadata(None)
    # Tracked by git, so small: names by dictionary, bytes of numbers apart by place, zstd at its strongest.
    floats = [name for name, dtype in columns.items() if dtype == _FLOAT]
    with atomic_path(path) as temporary:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            compression_level=19,
            use_dictionary=[name for name in columns if name not in floats],
            column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT"),
            store_schema=False,
            write_page_checksum=True,
        )


def _read_parquet(path: Path, columns: Mapping[str, str]) -> pd.DataFrame:
    try:
        names = [name for name in pq.read_schema(path).names if columns.get(name) == _STRING]
        with pq.ParquetFile(path, page_checksum_verification=True, read_dictionary=names) as file:
            table, rows = file.read(), file.metadata.num_rows
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except NotADirectoryError:
        file = next(above for above in path.parents if above.exists())
        raise UserError(f"{file}: is a file; name its directory, {file.parent}") from None
    except PermissionError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (
        pa.ArrowException,
        OSError,
        TypeError,
        ValueError,
    ) as error:  # pages unlike their checksums are an OSError
        raise UserError(
            f"{path}: damaged, or not a Parquet file ({' '.join(str(error).split())}); collect the runs again"
        ) from None
    if table.num_rows != rows:
        raise UserError(f"{path}: damaged ({table.num_rows} rows of {rows}); collect the runs again")
    others = set(table.column_names)
    if columns.keys() - others == {"rule"} and others < columns.keys():
        table = table.append_column("rule", table["trust_region"])  # written before rules were recorded
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise UserError(f"{path}: column {missing[0]} is missing; collect the runs again")
    try:
        frame: pd.DataFrame = table.select(list(columns)).to_pandas()
        for name, values in frame.items():
            if isinstance(values.dtype, pd.CategoricalDtype):  # Parquet has them as they came
                frame[name] = values.cat.set_categories(sorted(values.cat.categories))
        return frame.astype(dict(columns))
    except (pa.ArrowException, TypeError, ValueError, IndexError) as error:
        what = " ".join(str(error).split())
        raise UserError(f"{path}: damaged ({what}); collect the runs again") from None


def concatenated(frames: Sequence[pd.DataFrame], columns: Mapping[str, str]) -> pd.DataFrame:
    """Tidy tables of several experiments as one; the names of each column are those of all."""
    named = {}
    for name in (name for name, dtype in columns.items() if dtype == _STRING):
        names = {text for frame in frames for text in frame[name].cat.categories}
        named[name] = pd.CategoricalDtype(sorted(names))
    return pd.concat([frame.astype(named) for frame in frames], ignore_index=True).astype(
        {name: dtype for name, dtype in columns.items() if name not in named}
    )


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Writes a table as CSV, digests cut short; compressed when the name ends in ``.gz``."""
    short = frame.copy()
    for name in DIGESTS:
        digests = short[f"digest_{name}"]
        short[f"digest_{name}"] = digests.astype(str).str[:_CSV_DIGEST_LENGTH]
    text = short.to_csv(index=False, lineterminator="\n").encode()
    with atomic_path(path) as temporary:
        temporary.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
