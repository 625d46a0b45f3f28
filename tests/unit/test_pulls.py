"""Why an image did not come: messages as daemons of several versions print them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
import yaml

from roost import fallbacks, pulls, settings
from roost.lock import Lock, LockedImage
from roost.pins import Image

DIGEST = "sha256:" + "a" * 64
SDK = "Error pulling image x - 404 Client Error for http+docker://localhost/v1.41/images/create"


def test_what_is_no_registrys_fault_is_looked_up_in_the_catalogue() -> None:
    said = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock."
    told = pulls.failure(said, "org/image", "")
    assert told.startswith(f"org/image could not be pulled: {said}\n  cause: Docker does not run")
    assert "fix: sudo systemctl start docker" in told
    # What a pull knows better than a log does stays its own.
    assert "docker image prune" in pulls.failure("no space left on device", "org/image", "")
    assert "of no known kind" in pulls.failure("no idea", "org/image", "")


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        # Docker's own image store, asked by its client and by the SDK; then containerd's.
        (f"manifest for vllm/x@{DIGEST} not found: manifest unknown: manifest unknown", "gone"),
        (f'{SDK}: Not Found ("manifest for x@{DIGEST} not found: manifest unknown")', "gone"),
        (f'failed to resolve reference "docker.io/x@{DIGEST}": docker.io/x@{DIGEST}: not found', "gone"),  # noqa: E501
        ("latest: Pulling from owner/name\nmanifest unknown", "gone"),
        (
            f'{SDK}: Not Found ("pull access denied for x, repository does not exist or may '
            "require 'docker login': denied: requested access to the resource is denied\")",
            "login",
        ),
        ("Head https://ghcr.io/v2/x/manifests/y: unauthorized: authentication required", "login"),
        ("name unknown: repository name not known to registry", "repository"),
        (
            "toomanyrequests: You have reached your unauthenticated pull rate limit. "
            "https://www.docker.com/increase-rate-limit",
            "rate_limit",
        ),
        ("TOOMANYREQUESTS: you have reached your pull rate limit", "rate_limit"),
        ("no matching manifest for linux/arm64/v8 in the manifest list entries", "architecture"),
        ("no matching manifest for linux/arm64 in the manifest list entries.", "architecture"),
        ("Get https://r:5000/v2/: x509: certificate signed by unknown authority", "tls"),
        ("Get https://r:5000/v2/: http: server gave HTTP response to HTTPS client", "tls"),
        ("write /var/lib/docker/tmp/x: no space left on device", "disk"),
        # Docker's own image store of a manifest and of a layer; then containerd's.
        (f"manifest verification failed for digest {DIGEST}", "damaged"),
        (
            f"{SDK}: Internal Server Error "
            f'("filesystem layer verification failed for digest {DIGEST}")',
            "damaged",
        ),
        (
            'failed commit on ref "layer-x": commit failed: unexpected commit digest sha256:1, '
            "expected sha256:2: failed precondition",
            "damaged",
        ),
        ("received unexpected HTTP status: 502 Bad Gateway", "trouble"),
        ("unexpected status from GET request to https://r/v2/: 503 Service Unavailable", "trouble"),
        ("unexpected status from HEAD request to https://r/v2/x: 403 Forbidden", "login"),
        (
            "Get https://registry-1.docker.io/v2/: dial tcp: lookup registry-1.docker.io on "
            "127.0.0.53:53: no such host",
            "unreachable",
        ),
        ("Get http://10.0.0.1:5000/v2/: dial tcp 10.0.0.1:5000: connect: connection refused", "unreachable"),  # noqa: E501
        ("Get https://r/v2/: net/http: request canceled while waiting for connection "
         "(Client.Timeout exceeded while awaiting headers)", "unreachable"),
        # Something of the host's own store, not of the registry.
        (f"failed to get reader from content store: content digest {DIGEST}: not found", "unknown"),
        ("404 page not found", "unknown"),
        ("", "unknown"),
    ],
)  # fmt: skip
def test_a_digest_that_is_gone_is_told_apart_from_everything_else(said: str, cause: str) -> None:
    assert pulls.cause(said) == cause


def image(**facts: Any) -> dict[str, Any]:
    return {"repository": "org/image", "engine_version": "0.26", **facts}


GONE = Image.model_validate(
    image(
        digest="sha256:" + "0" * 64,
        fallbacks=[
            {
                "image": image(repository="mirror.example.org/image", digest=DIGEST),
                "support": "verified",
                "date": dt.date(2026, 11, 1),
                "reason": "The same image, kept elsewhere.",
                "source": "source 000",
            },
            {"image": image(tag="v0.26"), "reason": "A release.", "source": "source 001"},
            {
                "image": image(tag="muse"),
                "support": "unsupported",
                "reason": "No kernels for it.",
                "source": "source 000",
            },
            {
                "image": image(
                    build={
                        "git": "https://example.org/engine.git",
                        "revision": {"commit": "b" * 40},
                    }
                ),
                "reason": "From source.",
                "source": "source 002",
            },
        ],
    )
)


def test_the_choices_say_what_is_known_of_each_and_what_to_paste() -> None:
    lines = fallbacks.choices(GONE, Lock()).splitlines()
    made_of = GONE.fallbacks[-1].image.build
    assert made_of
    assert lines[1:] == [
        f"- mirror.example.org/image@{DIGEST}: verified on 2026-11-01. The same image, kept "
        "elsewhere. (source 000)",
        f'    roost_settings: {{image: "mirror.example.org/image@{DIGEST}", '
        'engine_version: "0.26"}',
        "- org/image:v0.26: untested. A release. (source 001)",
        "    its digest is not locked yet: `roost lock` with the recipe's id asks for it",
        "- org/image:muse: unsupported. No kernels for it. (source 000)",
        "- org/image:bbbbbbbbbbbb: untested. From source. (source 002)",
        "    build it on a machine of the host's architecture: docker build "
        f"--tag org/image:bbbbbbbbbbbb --label roost.build={made_of.digest} "
        f"'https://example.org/engine.git#{'b' * 40}'",
        *lines[-2:],
    ]
    assert "push it to a registry of yours and pin it" in lines[-2]


def test_a_setting_to_paste_is_one_that_an_inventory_takes() -> None:
    locked = LockedImage(digest=DIGEST, resolved=dt.date(2026, 11, 1))
    text = fallbacks.setting(GONE.fallbacks[1], Lock(images={"org/image": {"v0.26": locked}}))
    given = yaml.safe_load(text)["roost_settings"]
    overrides = settings.from_mapping(given, "here")
    assert overrides.image == f"org/image@{DIGEST}"
    assert overrides.engine_version == "0.26"


def test_without_a_choice_the_fix_names_the_settings() -> None:
    alone = GONE.model_copy(update={"fallbacks": []})
    assert "roost_registry_mirror" in fallbacks.choices(alone, Lock())
