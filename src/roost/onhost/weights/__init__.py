"""One revision of a model repository: from a hub onto a host's disk, whole or not there at all.

What the module ``hf_snapshot`` does, by subject:

- ``safetensors`` (what such a file begins with), ``shards`` (a directory of them looked into);
- ``revision`` (which it is, and how its files are known), ``place`` (its directory, and what lies
  beside it meanwhile), ``disk`` (what a disk refuses);
- ``hub`` (requests), ``answers`` (what a hub's answer, or none, means), ``listing`` (which files
  there are), ``patience`` (whether to try again);
- ``arrival`` (one file by HTTP), ``xet`` (large ones by the hub's own client), ``download`` (all of
  them in order);
- ``snapshot`` (there already, brought about, or removed).

Python 3.9 or newer: before that, hashes do not say that they are no matter of security, which some
hosts want to hear. Here are the names on the disk, for all who look there.
"""

from __future__ import annotations

from pathlib import Path

#: In a revision's directory: what it is, and every file with its size and hash.
RECORD = ".roost.json"
#: In the partial directory: files that are not whole yet, under their own paths.
PARTS = ".roost-parts"
#: In the partial directory: where the hub's own client works, for Xet.
XET = ".roost-xet"
#: Beside the directories of all repositories: locked by whoever changes one of them.
TURN = ".hf_snapshot.lock"


def partial_of(dest: Path) -> Path:
    """Where the download of a revision is until its directory is whole."""
    return dest.with_name(f".{dest.name}.partial")
