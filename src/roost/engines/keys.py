"""How an engine gets its API key: out of a mounted file, past argv, Docker's records and the log.

The container's entrypoint becomes a few lines of ``sh`` that read the file, set the engine's own
variable for it, and turn into what would have run. They stand in ``docker inspect``; the key does
not.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from roost.catalog_schema import ApiKey


def entrypoint(words: list[str], key: ApiKey, file: str) -> list[str]:
    """An entrypoint that does what ``words`` do, with the key in the engine's environment.

    It ends with an error where the file cannot be read or is empty: an engine without its key
    would serve everybody.

    Args:
        words: The entrypoint without a key; of an image with a start script of its own, that
            script's path is taken instead.
        key: What the engine reads its key from.
        file: The key's path inside the container.
    """
    name = key.variable
    read = f'set -e; {name}="$(cat {shlex.quote(file)})"; test -n "${name}"; export {name}'
    if key.start_script is None or key.program is None:
        return ["sh", "-c", f'{read}; exec "$0" "$@"', *words]
    # The script starts the program by its name. A directory before all others on PATH has one of
    # that name, which reads the key and becomes the real one; the script never has it.
    program = shlex.quote(key.program)
    shim = rf'#!/bin/sh\n{read}; exec "%s" "$@"\n'
    return [
        "sh",
        "-c",
        f'set -e; real="$(command -v {program})"; bin="$(mktemp -d)"; '
        f'printf {shlex.quote(shim)} "$real" >"$bin"/{program}; '
        f'chmod 755 "$bin"/{program}; PATH="$bin:$PATH"; export PATH; exec "$0" "$@"',
        key.start_script,
    ]
