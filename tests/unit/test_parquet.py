"""Tables of a run's folder."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from roost import parquet
from roost.errors import RoostError
from roost.parquet import Table

COLUMNS: dict[str, type] = {"point": str, "repetition": int, "clock": float}


def table() -> Table:
    return Table(COLUMNS, [{"point": "a", "repetition": 1, "clock": None}])


def test_rows_come_back_and_others_can_read_them(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(table().encode())
    assert parquet.read(path, COLUMNS, {"clock"}) == table().rows
    assert table().encode() == path.read_bytes()
    frame = pd.read_parquet(path)
    # Of a column without a value the type is known all the same.
    assert [str(kind) for kind in frame.dtypes] == ["str", "int64", "float64"]


@pytest.mark.parametrize(
    ("keep", "message"), [(0, r"x\.parquet"), (40, r"x\.parquet"), (None, "No such file")]
)
def test_what_cannot_be_read_is_named(keep: int | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    if keep is not None:
        path.write_bytes(table().encode()[:keep])
    with pytest.raises(RoostError, match=message):
        parquet.read(path, COLUMNS)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_no_finite_number_is_named(value: float, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    rows = [
        {"point": "a", "repetition": at, "clock": clock} for at, clock in ((1, None), (2, value))
    ]
    path.write_bytes(Table(COLUMNS, rows).encode())
    with pytest.raises(RoostError, match=r"x\.parquet: clock is no finite number"):
        parquet.read(path, COLUMNS, {"clock"})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (COLUMNS, "rows without clock"),
        ({"temperature": float}, r"another table than it should be\n.*temperature"),
        ({"point": int}, "another table than it should be"),
    ],
)
def test_another_table_is_named(columns: dict[str, type], message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(table().encode())
    with pytest.raises(RoostError, match=message):
        parquet.read(path, columns)


def test_a_small_file_of_a_large_table_is_not_read(tmp_path: Path) -> None:
    """A value that repeats takes no room in it, and all of it in memory."""
    rows = pa.table({"point": ["a"] * 3_000_000})
    pq.write_table(rows, tmp_path / "long.parquet")
    letters = pa.table({"point": ["a" * 2**20] * 200})
    pq.write_table(letters, tmp_path / "wide.parquet", use_dictionary=False, compression="zstd")
    for file in tmp_path.iterdir():
        assert file.stat().st_size < 2**20
        with pytest.raises(RoostError, match="too large a table") as caught:
            parquet.read(file, {"point": str})
        assert str(file) in str(caught.value)
