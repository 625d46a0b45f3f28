"""``python -m roost.lab.build``: build everything, and say how long each part took."""

from __future__ import annotations

import sys
import time

from roost.errors import RoostError
from roost.lab import paths
from roost.lab.build import build_all


def main() -> int:
    """Build into the lab's cache; 0, or 1 if a part failed."""
    started = time.monotonic()

    def say(message: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  {message}", flush=True)

    try:
        artefacts = build_all(paths.cache_dir(), say)
    except RoostError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    say(f"image {artefacts.image_digest}")
    say("all is there")
    return 0


if __name__ == "__main__":
    sys.exit(main())
