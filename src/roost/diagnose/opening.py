"""What is given for a diagnosis: a log, a compressed one, or an archive of ``roost logs``."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import cast

from roost.diagnose.findings import Diagnosis
from roost.errors import RoostError, UsageError

_GZIP = b"\x1f\x8b"
#: Where every tar says that it is one.
_TAR, _TAR_AT = b"ustar", 257
#: Bytes of text, colours of terminals included, whatever its language.
_PLAIN = bytes({*range(32, 127), *b"\t\r\n\x1b"})
#: Bytes at the beginning that are looked at.
_LOOKED_AT = 1 << 16
#: What ``roost logs`` found when it collected, with the settings that it knew of.
_KEPT = "/diagnosis.json"


@contextmanager
def log(file: BufferedReader) -> Iterator[BufferedReader | list[Diagnosis]]:
    """A log's text, or of an archive of ``roost logs`` the diagnosis in it.

    Args:
        file: Opened for bytes; need not be seekable.

    Raises:
        UsageError: It is no text.
        RoostError: It is compressed and damaged, also while it is read.
    """
    if not file.peek(len(_GZIP)).startswith(_GZIP):
        yield _text(file, file.name)
        return
    try:
        with gzip.GzipFile(fileobj=file) as packed:
            # A GzipFile is read as a raw file is, though its type does not say so.
            plain: BufferedReader = io.BufferedReader(cast(io.RawIOBase, packed), _LOOKED_AT)
            if plain.peek(1)[_TAR_AT:].startswith(_TAR):
                yield _kept(plain, file.name)
            else:
                yield _text(plain, file.name)
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise RoostError(
            f"{file.name}: its compressed content is damaged",
            why=str(error),
            fix="copy it again, or diagnose what `zcat` gets out of it",
        ) from None


def _text(file: BufferedReader, name: str) -> BufferedReader:
    start = file.peek(1)
    # A crash leaves zeros in a log, and a Windows terminal writes two bytes for each letter.
    seen = start.replace(b"\0", b"").removeprefix(codecs.BOM_UTF16_LE)
    strange = len(seen.translate(None, _PLAIN))
    if start[_TAR_AT:].startswith(_TAR) or (b"\0" in start and strange * 10 > len(seen)):
        raise UsageError(
            f"{name}: is no log",
            why="it is an archive, or a program's own data, and no text",
            fix=f"unpack it first, or save it as UTF-8; `file {name}` says what it is",
        )
    return file


def _kept(plain: BufferedReader, name: str) -> list[Diagnosis]:
    with tarfile.open(fileobj=plain, mode="r|") as archive:
        for entry in archive:
            if entry.name.endswith(_KEPT) and (found := archive.extractfile(entry)):
                try:
                    rows = json.load(found)
                    if isinstance(rows, list):
                        return [Diagnosis(**row) for row in rows]
                except (ValueError, TypeError):
                    pass
                break
    raise UsageError(
        f"{name}: is an archive without a diagnosis of `roost logs`",
        fix=f"unpack it and diagnose the log in it: tar -xf {name}",
    )
