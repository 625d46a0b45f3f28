"""What is made of Docker's settings, and which are refused."""

from __future__ import annotations

import json

import pytest

from roost.docker_settings import naming_plain
from roost.errors import RoostError

PATH = "/etc/docker/daemon.json"
REGISTRY = "10.0.0.1:5000"


def named(held: bytes) -> str | None:
    return naming_plain(held, PATH, REGISTRY)


@pytest.mark.parametrize("held", [b"", b" \n", b"{}", b'{"insecure-registries": null}'])
def test_nothing_becomes_the_registry_alone(held: bytes) -> None:
    assert json.loads(named(held) or "") == {"insecure-registries": [REGISTRY]}


def test_the_rest_stays_in_its_order() -> None:
    held = {"data-root": "/srv/D\u00f6cker", "insecure-registries": ["a:1"], "features": {}}
    text = named(json.dumps(held, ensure_ascii=False).encode())
    assert text
    assert list(json.loads(text).items()) == list(
        {**held, "insecure-registries": ["a:1", REGISTRY]}.items()
    )
    assert "D\u00f6cker" in text
    assert named(text.encode()) is None


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (b'{"debug": true,}', "it is not JSON: "),
        (b"\xff{}", "it is not JSON: "),
        (b"[" * 100_000, "it is not JSON: "),
        (b'["10.0.0.1:5000"]', "not an object"),
        (b'{"insecure-registries": "10.0.0.1:5000"}', "insecure-registries is not a list of names"),
        (b'{"insecure-registries": [1]}', "insecure-registries is not a list of names"),
    ],
)
def test_what_docker_could_not_read_is_refused(held: bytes, why: str) -> None:
    with pytest.raises(RoostError) as caught:
        named(held)
    assert caught.value.what == f"{PATH} cannot be read, and was left as it is"
    assert why in caught.value.why
    assert f"python3 -m json.tool {PATH}" in caught.value.fix
