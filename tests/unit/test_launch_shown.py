"""Launch specs as people read them, and as plain data."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator

import pytest
from tests.unit.test_launch_resolving import build

from roost.launch import shown
from roost.site import Site


def test_printed_docker_command_is_the_same_container() -> None:
    spec = build("gb10")
    words = shlex.split(shown.docker_command(spec).replace("\\\n", " "))
    assert words == shown.docker_argv(spec)
    at = words.index(spec.image)
    assert words[:3] == ["docker", "run", "-d"]
    assert words[at + 1 :] == spec.command
    assert words[at - 2 : at] == ["--entrypoint", "vllm"]
    for option, value in (
        ("--gpus", "all"),
        ("--ipc", "host"),
        ("-p", "127.0.0.1:8000:8000"),
        ("--cap-drop", "ALL"),
        ("--security-opt", "no-new-privileges"),
    ):
        assert any(pair == (option, value) for pair in _pairs(words)), option
    assert "--privileged" not in words


def _pairs(words: list[str]) -> Iterator[tuple[str, str]]:
    return itertools.pairwise(words)


@pytest.mark.parametrize(
    ("listen", "published", "url"),
    [
        ("127.0.0.1", "127.0.0.1:8000:8000", "http://127.0.0.1:8000"),
        ("0.0.0.0", "0.0.0.0:8000:8000", "http://127.0.0.1:8000"),
        ("::1", "[::1]:8000:8000", "http://[::1]:8000"),
        ("::", "[::]:8000:8000", "http://[::1]:8000"),
    ],
)
def test_a_port_is_published_and_reached(listen: str, published: str, url: str) -> None:
    spec = build("gb10", site=Site(listen=listen))
    assert (spec.ports[0].published, spec.ports[0].url) == (published, url)
    assert published in shown.docker_argv(spec)
    assert shown.as_json(spec)["ports"] == [published]
