"""The tidy tables on disk: what is written is read, in one order, and nothing damaged is taken."""

import random
import shutil

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import synthetic
from refusals import check_facts, refused

from troll.analysis.data.results import Plan, read_results, write_plan
from troll.analysis.data.runs import read_directories, write_whole
from troll.analysis.data.tidy import (
    ITEM_COLUMNS,
    RUN_COLUMNS,
    Tidy,
    on_disk,
    read_table_file,
    read_tidy,
    table_file,
    table_files,
    verify_table_file,
    write_table_file,
)
from troll.common.errors import UserError


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    root = tmp_path_factory.mktemp("results") / "testbed"
    made = synthetic.write_experiment(root, estimators=["grpo"], seeds=2, batches=2, problems=4)
    return read_directories(*made)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A part with one run."""
    root = tmp_path_factory.mktemp("results") / "testbed"
    run = synthetic.write_run(root, "chains", "clip", "grpo", "gentle", 0, batches=2, problems=4)
    write_table_file(table_file(root, "clip"), [on_disk(read_directories([run]))])
    return table_file(root, "clip")


def equal(one, other):
    pd.testing.assert_frame_equal(one.runs, other.runs)
    pd.testing.assert_frame_equal(one.items, other.items)


def by_rule(tidy, directory):
    frame = on_disk(tidy)
    for rule, rows in frame.groupby("rule", observed=True):
        write_table_file(table_file(directory, str(rule) or "base"), [rows])
    return directory


def test_what_is_written_in_one_part_or_several_is_read_again(known, tmp_path):
    write_whole(known, tmp_path / "whole")
    equal(read_tidy(tmp_path / "whole"), known)
    assert [*table_files(by_rule(known, tmp_path / "ruled"))] == ["base", "clip", "troll"]
    equal(read_tidy(tmp_path / "ruled"), known)
    assert dict(known.runs.dtypes.astype(str)) == RUN_COLUMNS
    assert dict(known.items.dtypes.astype(str)) == ITEM_COLUMNS
    write_whole(known, tmp_path / "ruled")
    assert [*table_files(tmp_path / "ruled")] == ["all"], "parts of before are gone"


def test_missing_numbers_and_the_last_bits_are_kept(known, tmp_path):
    runs = known.runs.copy()
    special = [float("nan"), -0.0, 5e-324, 1.7976931348623157e308, float("inf"), 0.1 + 0.2]
    runs.loc[runs.index[: len(special)], "value"] = special
    write_whole(Tidy(runs, known.items), tmp_path)
    found = read_tidy(tmp_path).runs["value"].iloc[: len(special)]
    assert [value.hex() for value in found] == [value.hex() for value in special]


def test_large_seeds_are_kept_beside_base_models_which_have_none(known, tmp_path):
    seed = 2**62 + 1
    frames = [frame.assign(seed=frame["seed"] + seed) for frame in (known.runs, known.items)]
    write_whole(Tidy(*frames), tmp_path)
    for frame in (read_tidy(tmp_path).runs, read_tidy(tmp_path).items):
        assert set(frame["seed"].dropna()) == {seed, seed + 1} and frame["seed"].isna().any()


def test_rows_have_one_order_and_files_one_text_whoever_wrote_them(known, tmp_path):
    frame = on_disk(known)
    write_table_file(tmp_path / "first.parquet", [frame])
    shuffled = frame.sample(frac=1, random_state=1)
    names = shuffled.astype({"metric": pd.CategoricalDtype(sorted(set(frame["metric"]), reverse=True))})
    for index, frames in enumerate(
        [[shuffled], [names], [frame[5:], frame[:5]], [read_table_file(tmp_path / "first.parquet")]]
    ):
        write_table_file(tmp_path / f"{index}.parquet", frames)
        assert (tmp_path / f"{index}.parquet").read_bytes() == (tmp_path / "first.parquet").read_bytes()
    written = read_table_file(tmp_path / "first.parquet")
    keys = ["experiment", "run_id", "source", "metric", "step"]
    order = written[keys].astype(object).fillna(-1)
    assert order.equals(order.sort_values(keys, ignore_index=True))
    assert b"pandas" not in (tmp_path / "first.parquet").read_bytes(), "nor a version of it"


def test_parts_of_several_runs_do_not_depend_on_what_else_was_in_memory(known, tmp_path):
    """Names that no row has any more stay in a column's categories, and must not get into the file."""
    one = str(known.runs["run_id"].iloc[0])
    alone = Tidy(
        *(frame.astype({"run_id": str}).astype({"run_id": "category"}) for frame in (known.runs, known.items))
    )
    for index, tidy in enumerate((known.of_runs([one]), alone.of_runs([one]))):
        write_table_file(tmp_path / f"{index}.parquet", [on_disk(tidy)])
    assert (tmp_path / "0.parquet").read_bytes() == (tmp_path / "1.parquet").read_bytes()


@pytest.mark.parametrize("part", ["pages", "footer", "pages of a file without digests"])
def test_a_damaged_part_is_refused_in_one_line_or_what_it_says_is_unchanged(small, tmp_path, part):
    """Pages have checksums, and columns digests: a footer may name pages of another column."""
    if part.endswith("digests"):
        older = tmp_path / "older.parquet"
        table = pq.read_table(small).replace_schema_metadata(None)
        pq.write_table(table, older, compression="zstd", write_page_checksum=True)
        small = older
    whole, expected = small.read_bytes(), read_table_file(small)
    pages = len(whole) - int.from_bytes(whole[-8:-4], "little") - 8
    places = range(pages) if part != "footer" else range(pages, len(whole))
    draw, path, found = random.Random(7), tmp_path / "clip.parquet", 0
    for _ in range(100):
        damaged = bytearray(whole)
        for place in draw.sample(places, draw.choice((1, 1, 1, 8))):
            damaged[place] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        try:
            assert verify_table_file(path).equals(expected)
        except UserError as error:
            check_facts(str(error), path)
            found += 1
    assert found > 25


@pytest.mark.parametrize("column", ["value", "step", "metric", "digest_data"])
def test_columns_are_those_that_were_written(small, tmp_path, column):
    """As where a footer's offset leads to pages of another column, whose checksums are right."""
    table, metadata = pq.read_table(small), pq.read_metadata(small).metadata
    place = table.column_names.index(column)
    values = table[column].take(pa.array(range(len(table))[::-1]))
    if column == "digest_data":
        values = pa.array(["0"] * len(table))
    other = table.set_column(place, table.field(place), values)
    for kept in (metadata, {}):
        path = tmp_path / f"{len(kept)}.parquet"
        with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
            writer.write_table(other)
            writer.add_key_value_metadata(kept)
    with refused(tmp_path / "1.parquet", column):
        verify_table_file(tmp_path / "1.parquet")
    assert len(verify_table_file(tmp_path / "0.parquet")) == len(table), "files of before have no digests"


@pytest.mark.parametrize("cut", [0, 3, 100, -1])
def test_a_part_that_is_cut_off_is_refused(small, tmp_path, cut):
    path = tmp_path / "clip.parquet"
    path.write_bytes(small.read_bytes()[:cut])
    with refused(path, "git checkout"):
        read_table_file(path)


def test_tables_of_another_kind_are_refused(small, tmp_path):
    path = tmp_path / "tidy/all.parquet"
    with refused(tmp_path / "tidy", "*.parquet"):
        read_tidy(tmp_path)
    with refused(path):
        read_table_file(path)
    path.parent.mkdir()
    path.write_text("no table")
    with refused(path, "git checkout"):
        read_tidy(tmp_path)
    pd.DataFrame({"a": [1]}).to_parquet(path)
    with refused(path, "column experiment"):
        read_tidy(tmp_path)
    table = pq.read_table(small)
    numbers = table["value"].cast(pa.float32()).cast(pa.string())
    pq.write_table(table.set_column(table.column_names.index("value"), "value", numbers), path)
    with refused(path, "git checkout"):
        read_tidy(tmp_path)


def test_a_run_in_two_parts_is_refused_and_a_file_that_is_being_written_left_out(known, tmp_path):
    by_rule(known, tmp_path)
    shutil.copy(tmp_path / "tidy/clip.parquet", tmp_path / "tidy/.clip.parquet.x1.parquet")
    equal(read_tidy(tmp_path), known)
    assert len(table_files(tmp_path)) == 3
    shutil.copy(tmp_path / "tidy/clip.parquet", tmp_path / "tidy/all.parquet")
    with refused("all.parquet", "clip.parquet", "run tiny/chains"):
        read_tidy(tmp_path)


def test_runs_that_are_not_planned_are_left_out(known, tmp_path):
    by_rule(known, tmp_path)
    names = ["model", "task", "trust_region", "estimator", "condition", "seed"]
    every = known.runs[["run_id", *names]].drop_duplicates().dropna().astype({"seed": int})
    planned = every[(every["trust_region"] == "clip") & (every["seed"] == 1)]
    assert 1 < len(planned) < len(every)
    write_plan(tmp_path, Plan(expected=planned[names].astype(object).to_dict("records")))
    found = read_results(tmp_path)
    bases = {"base/tiny/chains", "base/tiny/functions"}
    for frame, of in ((found.runs, known.runs), (found.items, known.items)):
        assert set(frame["run_id"]) == {*planned["run_id"], *bases}
        kept = of[of["run_id"].isin([*planned["run_id"], *bases])].reset_index(drop=True)
        pd.testing.assert_frame_equal(frame.astype(str), kept.astype(str))
    write_plan(tmp_path, Plan(expected=planned[names[:-1]].astype(object).to_dict("records")))
    with refused(tmp_path / "plan.json", "expected", "'seed'"):
        read_results(tmp_path)
    write_plan(tmp_path, Plan(expected=[]))
    assert set(read_results(tmp_path).runs["run_id"]) == bases
    (tmp_path / "plan.json").unlink()
    equal(Tidy(read_results(tmp_path).runs, read_results(tmp_path).items), known)


def test_a_model_may_be_called_what_base_models_are(tmp_path, known):
    ids = known.runs["run_id"].astype(str).str.replace("tiny/", "base/", regex=False)
    runs = known.runs.assign(model="base", run_id=ids)
    ids = known.items["run_id"].astype(str).str.replace("tiny/", "base/", regex=False)
    frames = (runs, known.items.assign(model="base", run_id=ids))
    types = {"model": "category", "run_id": "category"}
    write_whole(Tidy(*(frame.astype(types) for frame in frames)), tmp_path)
    write_plan(tmp_path, Plan(expected=[]))
    assert set(read_results(tmp_path).runs["trust_region"]) == {"base"}


def test_admitted_runs_are_marked_where_the_plan_names_them(known, tmp_path):
    write_whole(known, tmp_path)
    ids = sorted(set(known.runs["run_id"]))
    names = ["model", "task", "trust_region", "estimator", "condition", "seed"]
    planned = known.runs[names].drop_duplicates().dropna().astype(object).to_dict("records")
    for mixed in ([], ids[3:5]):
        write_plan(
            tmp_path, Plan(expected=[run | {"seed": int(run["seed"])} for run in planned], mixed=mixed)
        )
        results = read_results(tmp_path)
        for frame in (results.runs, results.items):
            assert sorted(set(frame.loc[frame["mixed"], "run_id"])) == mixed
