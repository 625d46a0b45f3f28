"""Tables that are too long for JSON, as Parquet.

pyarrow takes a quarter of a second to import, so it is imported where a file is written or read.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roost import kept_files
from roost.errors import RoostError

#: Of a table that is read; the longest that a run writes has a tenth of these.
MOST_ROWS = 2_000_000


@dataclass
class Table:
    """Rows with typed columns; a value that is not known is ``None``.

    Attributes:
        columns: ``str``, ``int`` or ``float`` by the column's name. Said, not guessed: of a column
            without a value nothing could be guessed, and two runs' tables would not fit together.
    """

    columns: Mapping[str, type]
    rows: list[dict[str, Any]] = field(default_factory=list)

    def encode(self) -> bytes:
        """The bytes of a Parquet file; equal rows give equal bytes."""
        import pyarrow as pa
        import pyarrow.parquet

        out = pa.BufferOutputStream()
        table = pa.Table.from_pylist(self.rows, schema(self.columns))
        pa.parquet.write_table(table, out, compression="zstd", version="2.6")
        return bytes(out.getvalue().to_pybytes())


def read(
    path: Path, columns: Mapping[str, type], may_lack: Set[str] = frozenset()
) -> list[dict[str, Any]]:
    """The rows of a file.

    Args:
        path: The file.
        columns: As of the :class:`Table` that it was written from.
        may_lack: Columns of which a value may be unknown.

    Raises:
        RoostError: It is not there, is no Parquet, or has not these columns, each with its values.
    """
    import pyarrow as pa
    import pyarrow.compute
    import pyarrow.parquet

    try:
        with kept_files.opened(path) as stream:
            file = pa.parquet.ParquetFile(stream)
            _require_fitting(path, file.metadata)
            found = file.read()
    except OSError as error:
        # Also what pyarrow raises for a file that was cut off.
        raise RoostError(f"{path}: cannot be read", why=error.strerror or str(error)) from None
    except pa.ArrowException as error:
        raise RoostError(f"{path}: no Parquet file", why=str(error).splitlines()[0]) from None
    try:
        table = found.select(list(columns)).cast(schema(columns))
    except (KeyError, pa.ArrowException) as error:
        raise RoostError(f"{path}: another table than it should be", why=str(error)) from None
    if gaps := [name for name in columns if table[name].null_count and name not in may_lack]:
        raise RoostError(f"{path}: rows without {' or '.join(gaps)}")
    for name in (name for name, kind in columns.items() if kind is float):
        if pa.compute.all(pa.compute.is_finite(table[name])).as_py() is False:
            raise RoostError(f"{path}: {name} is no finite number in each row")
    return list(table.to_pylist())


def _require_fitting(path: Path, said: Any) -> None:
    """Nothing, or that a table is too large: a value that repeats takes no room in the file."""
    size = sum(said.row_group(at).total_byte_size for at in range(said.num_row_groups))
    if said.num_rows > MOST_ROWS or size > kept_files.LARGEST:
        raise RoostError(
            f"{path}: too large a table",
            why=f"{said.num_rows:,} rows, {MOST_ROWS:,} at the most; {size / 2**20:,.0f} MiB, "
            f"{kept_files.LARGEST // 2**20} at the most",
        )


def schema(columns: Mapping[str, type]) -> Any:
    """Arrow's schema of these columns."""
    import pyarrow as pa

    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64()}
    return pa.schema([(name, kinds[kind]) for name, kind in columns.items()])
