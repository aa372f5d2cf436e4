"""Columns, reading and writing of the tidy tables.

In memory there are two: ``runs`` has one row per run, metric and rollout batch, ``items`` one per run and
test problem. On disk, ``results/<experiment>/tidy`` holds the rows of both in one table: a single file, or
one per rule in experiments that append runs as they finish. Rows are sorted and have no timestamps, so the
same runs always give the same bytes.
"""

import gzip
import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from troll.analysis.data.provenance import DIGESTS
from troll.analysis.data.run_files import COORDINATES
from troll.common.errors import UserError
from troll.common.files import atomic_path

BASE = "base"
"""Trust region recorded for rows of the base model, which was not trained with any rule."""

GROUP = ("model", "task", "condition", "estimator", "trust_region")
"""Coordinates of a table's row: all seeds of one method in one setting."""
PROVENANCE = ("git_commit", "versions", "hardware", "settings")
"""Provenance columns: text or JSON; empty if unknown."""
TIDY = "tidy"
"""The directory of the tables in ``results/<experiment>``."""
WHOLE = "all"
"""The name of the table of an experiment that is collected as a whole."""
_PROBLEM = "problem"
"""Source of the item rows on disk: ``value`` of ``n_items`` samples of the problem ``metric`` passed."""

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
    "numerics": _INTEGER,
    "key": _STRING,
    **{f"digest_{name}": _STRING for name in (*DIGESTS, "log")},
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
_ON_DISK = {name: dtype for name, dtype in RUN_COLUMNS.items() if name != "mixed"}
_ARROW = {_STRING: pa.string(), _INTEGER: pa.int64(), _FLOAT: pa.float64()}
_IN_MEMORY = _ARROW | {_STRING: pa.dictionary(pa.int32(), pa.string())}
_SCHEMA = pa.schema([(name, _ARROW[dtype]) for name, dtype in _ON_DISK.items()])
_CSV_DIGEST_LENGTH = 12
_DIGESTS_OF_COLUMNS = b"sha256"
"""Key of a file's metadata: shortened digests by column name. Older files lack it."""
_DIGEST_LENGTH = 16
_REMEDY = "restore it (git checkout), or remove it and collect its runs again"


@dataclass(frozen=True)
class Tidy:
    """The two tables."""

    # columns ``RUN_COLUMNS``. ``rule`` is the rule of the trust region, which may have another name.
    # ``source`` is train, validation, test, manifest or summary. In rows of the base model ``seed`` is
    # missing, and ``rule``, ``estimator`` and ``condition`` are empty.
    runs: pd.DataFrame
    # columns ``ITEM_COLUMNS``: ``c`` of ``n`` graded samples of problem ``task_id`` passed
    items: pd.DataFrame

    def of_runs(self, run_ids: Collection[str]) -> "Tidy":
        """Returns the rows of these runs."""
        selected, both = list(run_ids), (self.runs, self.items)
        return Tidy(*(frame[frame["run_id"].isin(selected)].reset_index(drop=True) for frame in both))


def table_files(directory: Path) -> dict[str, Path]:
    """Returns the files of an experiment's tables by name (that of a rule, or `all`), sorted."""
    files = sorted((directory / TIDY).glob("*.parquet"))
    return {path.stem: path for path in files if not path.name.startswith(".")}  # dot files are being written


def table_file(directory: Path, name: str) -> Path:
    """Returns the path of one of the tables' files."""
    return directory / TIDY / f"{name}.parquet"


def read_tidy(directory: Path) -> Tidy:
    """Returns the tables of an experiment."""
    files = table_files(directory)
    if not files:
        if directory.is_file():
            raise UserError(f"{directory}: is a file; name its directory, {directory.parent}")
        raise UserError(f"{directory / TIDY}: no tables (*.parquet) there; collect the runs first")
    frames = {path: read_table_file(path) for path in files.values()}
    holder: dict[str, Path] = {}
    for path, frame in frames.items():
        for run_id in frame["run_id"].unique():
            if other := holder.get(run_id):
                raise UserError(f"{other} and {path}: both hold run {run_id}; remove one of them")
            holder[run_id] = path
    return _from_disk(_sorted(list(frames.values())))


def read_table_file(path: Path, columns: Collection[str] = ()) -> pd.DataFrame:
    """Returns one file of a tidy table as it is on disk, by default with all columns.

    Pages have checksums, which are verified; the file's own metadata have none (`verify_table_file`).
    """
    dtypes = {name: dtype for name, dtype in _ON_DISK.items() if not columns or name in columns}
    try:
        names = [name for name in pq.read_schema(path).names if dtypes.get(name) == _STRING]
        with pq.ParquetFile(path, page_checksum_verification=True, read_dictionary=names) as file:
            missing = [name for name in _ON_DISK if name not in file.schema_arrow.names]
            if missing:
                raise UserError(f"{path}: column {missing[0]} is missing; {_REMEDY}")
            table = file.read(columns=list(dtypes))
        types = {field.name: field.type for field in table.schema}
        if types != {name: _IN_MEMORY[dtype] for name, dtype in dtypes.items()}:
            raise ValueError("its columns have other types")
        frame: pd.DataFrame = table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)[list(dtypes)]
        for name, values in frame.items():
            if isinstance(values.dtype, pd.CategoricalDtype):  # Parquet keeps order of appearance
                frame[name] = values.cat.set_categories(sorted(values.cat.categories))
        return frame.astype(dtypes)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except PermissionError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    # A checksum mismatch is an OSError.
    except (pa.ArrowException, OSError, TypeError, ValueError, IndexError, OverflowError) as error:
        what = " ".join(str(error).split())
        raise UserError(f"{path}: damaged or not a tidy table ({what}); {_REMEDY}") from None


def verify_table_file(path: Path) -> pd.DataFrame:
    """Reads a file as `read_table_file` does; raises a `UserError` unless its columns are as written.

    A damaged footer may name pages of another column. Files without digests of columns are not verified.
    """
    frame = read_table_file(path)
    try:
        metadata = pq.read_metadata(path)
        written = dict(json.loads((metadata.metadata or {}).get(_DIGESTS_OF_COLUMNS, b"{}")))
        for name, values in frame.items():
            if name in written and written[name] != _digest(values):
                raise ValueError(f"{name} is not what was written")
        if len(frame) != metadata.num_rows:
            raise ValueError(f"{len(frame)} rows of {metadata.num_rows}")
    except (pa.ArrowException, OSError, TypeError, ValueError) as error:
        what = " ".join(str(error).split())
        raise UserError(f"{path}: damaged or not a tidy table ({what}); {_REMEDY}") from None
    return frame


def write_table_file(path: Path, frames: Sequence[pd.DataFrame]) -> None:
    """Writes one file atomically, its rows sorted, with digests of its columns as the only metadata."""
    frame = _sorted(frames)
    digests = json.dumps({name: _digest(values) for name, values in frame.items()})
    table = pa.Table.from_pandas(frame, schema=_SCHEMA, preserve_index=False)
    # Tracked by git, hence compressed strongly: dictionaries for text, byte-stream split for floats, zstd 19.
    floats = [name for name, dtype in _ON_DISK.items() if dtype == _FLOAT]
    options = {
        "compression": "zstd",
        "compression_level": 19,
        "use_dictionary": [name for name in _ON_DISK if name not in floats],
        "column_encoding": dict.fromkeys(floats, "BYTE_STREAM_SPLIT"),
        "store_schema": False,
        "write_page_checksum": True,
    }
    with atomic_path(path) as temporary, pq.ParquetWriter(temporary, _SCHEMA, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({_DIGESTS_OF_COLUMNS: digests})


def _digest(values: pd.Series) -> str:
    """Returns a short digest of a column's categories, values and gaps, whatever its memory layout."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        used = values.cat.remove_unused_categories()
        names = sorted(used.cat.categories)
        begin = json.dumps(names).encode()
        numbers = used.cat.set_categories(names).cat.codes.to_numpy(dtype="<i4")
    else:
        begin = values.isna().to_numpy().tobytes()
        numbers = values.fillna(0).to_numpy(dtype="<f8" if values.dtype == _FLOAT else "<i8")
    return hashlib.sha256(begin + numbers.tobytes()).hexdigest()[:_DIGEST_LENGTH]


def on_disk(tidy: Tidy) -> pd.DataFrame:
    """Returns the rows of both tables as one frame, in the format of the files."""
    constants = [name for name in _ON_DISK if name in (*_COORDINATE_TYPES, "rule")]
    items = tidy.items[constants].assign(
        metric=tidy.items["task_id"],
        value=tidy.items["c"].astype(float),
        n_items=tidy.items["n"],
        source=_PROBLEM,
    )
    per_run = ["run_id", *(name for name in _ON_DISK if name not in (*items.columns, *_OF_ROWS))]
    runs = tidy.runs[per_run].drop_duplicates("run_id")
    items = items.merge(runs, on="run_id", how="left").reindex(columns=list(_ON_DISK)).astype(_ON_DISK)
    return concatenated([tidy.runs[list(_ON_DISK)], items], _ON_DISK)


_OF_ROWS = ("step", "rollout_batch", "wall_s", "metric", "value", "n_items", "source")
"""Columns that vary within a run."""


def _from_disk(frame: pd.DataFrame) -> Tidy:
    problems = (frame["source"] == _PROBLEM).to_numpy()
    runs = _tidied(frame[~problems]).assign(mixed=False)
    items = _tidied(frame[problems]).rename(columns={"metric": "task_id", "n_items": "n"})
    items = items.assign(c=items["value"].astype("Int64"), mixed=False)
    return Tidy(runs[list(RUN_COLUMNS)], items[list(ITEM_COLUMNS)])


def _tidied(frame: pd.DataFrame) -> pd.DataFrame:
    """Returns rows with a plain index and without unused categories."""
    frame = frame.reset_index(drop=True)
    for name, values in frame.items():
        if isinstance(values.dtype, pd.CategoricalDtype):
            frame[name] = values.cat.remove_unused_categories()
    return frame


def _sorted(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """All rows, sorted by run, source, metric and step."""
    frame = concatenated(frames, _ON_DISK)
    return frame.sort_values([*COORDINATES, "source", "metric", "step"], kind="stable", ignore_index=True)


def concatenated(frames: Sequence[pd.DataFrame], columns: Mapping[str, str]) -> pd.DataFrame:
    """Concatenates tidy tables; the categories of each column are the union of all."""
    named = {}
    for name in (name for name, dtype in columns.items() if dtype == _STRING):
        names = {text for frame in frames for text in frame[name].cat.categories}
        named[name] = pd.CategoricalDtype(sorted(names))
    return pd.concat([frame.astype(named) for frame in frames], ignore_index=True).astype(
        {name: dtype for name, dtype in columns.items() if name not in named}
    )


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """Writes a table as CSV with shortened digests; compressed if the name ends in ``.gz``."""
    short = frame.copy()
    for name in ("key", *(f"digest_{name}" for name in (*DIGESTS, "log"))):
        short[name] = short[name].astype(str).str[:_CSV_DIGEST_LENGTH]
    text = short.to_csv(index=False, lineterminator="\n").encode()
    with atomic_path(path) as temporary:
        temporary.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
