"""Tables that are too long for JSON, as Parquet.

pyarrow takes a quarter of a second to import, so it is imported where a file is written or read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from roost.errors import RoostError


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

        kinds = {str: pa.string(), int: pa.int64(), float: pa.float64()}
        schema = pa.schema([(name, kinds[kind]) for name, kind in self.columns.items()])
        out = pa.BufferOutputStream()
        pa.parquet.write_table(
            pa.Table.from_pylist(self.rows, schema), out, compression="zstd", version="2.6"
        )
        return bytes(out.getvalue().to_pybytes())


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file.

    Raises:
        RoostError: It is not there, or is no Parquet.
    """
    import pyarrow as pa
    import pyarrow.parquet

    try:
        with path.open("rb") as stream:
            return list(pa.parquet.read_table(stream).to_pylist())
    except OSError as error:
        # Also what pyarrow raises for a file that was cut off.
        raise RoostError(f"{path}: cannot be read", why=error.strerror or str(error)) from None
    except pa.ArrowException as error:
        raise RoostError(f"{path}: no Parquet file", why=str(error).splitlines()[0]) from None
