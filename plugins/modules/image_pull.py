#!/usr/bin/python
"""Pull an image as community.docker does, and write down how far it has come."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.roost.onhost import atomic
from ansible_collections.community.docker.plugins.module_utils.common_api import (
    AnsibleDockerClient,
    RequestException,
)

DOCUMENTATION = r"""
---
module: image_pull
short_description: Pull an image and say how far it has come
description:
  - Pulls an image that is not on the host. Meanwhile a file tells what of it is there, for
    M(download_facts) to read; the file goes with the pull.
options:
  name:
    description: The image by digest, C(repository@sha256:…).
    type: str
    required: true
  progress:
    description: >-
      File that holds C({stage, done}); the bytes are those of compressed layers.
    type: path
    required: true
extends_documentation_fragment:
  - community.docker.docker.api_documentation
attributes:
  check_mode:
    support: none
author:
  - roost
"""

EXAMPLES = r"""
- name: Pull it in the background
  image_pull:
    name: "{{ image }}"
    progress: /run/roost-image-pull.json
  async: 7200
  poll: 0
"""

RETURN = r"""
image:
  description: What Docker knows of it.
  returned: success
  type: dict
"""

#: Seconds between two writes; an event comes every hundredth of a second or so.
EVERY = 1.0


class Progress:
    """What the daemon's events say of a pull, in a file.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.layers: dict[str, int] = {}
        self.extracting: set[str] = set()
        self.coming: set[str] = set()
        self._due = 0.0

    def saw(self, event: dict[str, Any]) -> None:
        """Take one event of the daemon's stream into account."""
        layer, status = event.get("id"), event.get("status", "")
        if not layer:
            return
        detail = event.get("progressDetail") or {}
        if status == "Downloading":
            # Some layers come without their size; what came of them counts all the same.
            self.layers[layer] = max(self.layers.get(layer, 0), int(detail.get("current") or 0))
            self.coming.add(layer)
        elif status in {"Verifying Checksum", "Download complete", "Pull complete"}:
            self.coming.discard(layer)
            self.extracting.discard(layer)
        elif status == "Extracting":
            self.extracting.add(layer)
            self.layers[layer] = max(self.layers.get(layer, 0), int(detail.get("total") or 0))
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + EVERY
            self.write()

    def write(self) -> None:
        """Write the file, so that a reader never sees half of it."""
        stage = "unpacking" if self.extracting and not self.coming else "fetching"
        # A full disk is the daemon's to report, in the words that explain it.
        with contextlib.suppress(OSError):
            atomic.write(self.path, json.dumps({"stage": stage, "done": sum(self.layers.values())}))

    def end(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self.path.unlink()


class Client(AnsibleDockerClient):  # type: ignore[misc]  # the collection has no types
    """The collection's client, which hands every event of a pull to its log."""

    progress: Progress | None = None

    def log(self, msg: Any, pretty_print: bool = False) -> None:
        """Read what it would log."""
        if self.progress is not None and isinstance(msg, dict):
            self.progress.saw(msg)
        super().log(msg, pretty_print=pretty_print)


def main() -> None:
    """Entry point of the module."""
    client = Client(
        argument_spec={
            "name": {"type": "str", "required": True},
            "progress": {"type": "path", "required": True},
        }
    )
    name, _, digest = client.module.params["name"].partition("@")
    client.progress = Progress(Path(client.module.params["progress"]))
    try:
        image = client.find_image(name=name, tag=digest)
        if image:
            client.module.exit_json(changed=False, image=image)
        image, _ = client.pull_image(name, tag=digest)
        client.module.exit_json(changed=True, image=image)
    except RequestException as error:
        client.fail(f"Docker does not answer: {error}")
    finally:
        client.progress.end()


if __name__ == "__main__":
    main()
