"""A container registry, asked what a tag means and which platforms an image has.

No layer moves. Credentials come from Docker's own configuration, as for ``docker pull``; the
token dance is oras's. The request itself is made here, once and with a time limit: oras retries a
refused connection for half a minute before it says so.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from typing import Any

from roost.errors import RoostError
from roost.lock import LockedImage
from roost.pins import Image
from roost.references import split_mirror, split_registry

#: Seconds until an unanswered question counts as no answer.
TIMEOUT = 20.0

_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
#: Docker Hub's name in references is not the host that answers.
_DOCKER_HUB = {"docker.io", "index.docker.io"}
_DOCKER_HUB_HOST = "registry-1.docker.io"


class Registry:
    """One image repository on the registry that serves it.

    Args:
        repository: As a recipe names it (``vllm/vllm-openai``, ``ghcr.io/owner/name``).
        mirror: ``host[:port]`` that answers instead, with ``http://`` before it for a registry
            without TLS.
    """

    def __init__(self, repository: str, mirror: str | None = None) -> None:
        from oras.container import Container
        from oras.provider import Registry as OrasRegistry

        scheme, host = "https", None
        if mirror:
            scheme, host = split_mirror(mirror)
        registry, path = split_registry(repository)
        host = host or registry or "docker.io"
        if host in _DOCKER_HUB:
            host = _DOCKER_HUB_HOST
            path = path if "/" in path else f"library/{path}"
        self.where = f"{host}/{path}"
        self._url = f"{scheme}://{host}/v2/{path}"
        self._oras = OrasRegistry(hostname=host, insecure=scheme == "http")
        self._oras.auth.load_configs(Container(f"{host}/{path}"))

    def resolve(self, image: Image) -> LockedImage:
        """The digest, platforms and compressed sizes behind a tag or digest.

        Raises:
            RoostError: No answer, no such manifest, no permission; each with its own reason.
        """
        manifest, digest = self._get(f"manifests/{image.name}", (*_INDEXES, *_MANIFESTS))
        if image.digest is not None and digest != image.digest:
            raise RoostError(
                f"{self.where}: asked for {image.digest}, was given {digest}",
                why="the registry or something before it hands out another image",
                fix="do not pull from it; find out what answers there",
            )
        sizes: dict[str, int] = {}
        if "manifests" in manifest:
            for entry in manifest["manifests"]:
                platform = entry.get("platform", {})
                if platform.get("os") != "linux" or platform.get("architecture") == "unknown":
                    continue  # attestations and other systems
                part, _ = self._get(f"manifests/{entry['digest']}", _MANIFESTS)
                sizes[str(platform["architecture"])] = _compressed(part)
        else:
            config, _ = self._get(f"blobs/{manifest['config']['digest']}", ("*/*",))
            sizes[str(config.get("architecture", "amd64"))] = _compressed(manifest)
        return LockedImage(
            digest=digest,
            platforms=sorted(sizes),
            bytes=sizes,
            resolved=dt.datetime.now(dt.UTC).date(),
        )

    def _get(self, path: str, accept: tuple[str, ...]) -> tuple[dict[str, Any], str]:
        """A JSON document and the digest of its bytes."""
        import requests

        url = f"{self._url}/{path}"
        headers = {"Accept": ", ".join(accept)}
        session = self._oras.session
        try:
            response = session.get(url, headers=headers, timeout=TIMEOUT)
            if response.status_code == 401:
                headers, changed = self._oras.auth.authenticate_request(response, headers)
                if changed:
                    response = session.get(url, headers=headers, timeout=TIMEOUT)
        except requests.exceptions.SSLError as error:
            raise RoostError(
                f"{self.where}: no TLS connection to the registry",
                why=_last_cause(error),
                fix="for a registry without TLS on your own network write http:// before its "
                "address (roost_registry_mirror, --registry)",
            ) from None
        except (requests.exceptions.RequestException, ValueError) as error:
            raise RoostError(
                f"{self.where}: the registry cannot be reached",
                why=_last_cause(error),
                fix="check the network and the registry's address (roost_registry_mirror)",
            ) from None
        if response.status_code != 200:
            raise _refusal(self.where, path, response.status_code)
        try:
            document = json.loads(response.content)
            if not isinstance(document, dict):
                raise ValueError
        except ValueError:
            raise RoostError(
                f"{self.where}: the answer for {path} is not JSON",
                fix="check that a registry answers at that address, not a proxy's login page",
            ) from None
        return document, "sha256:" + hashlib.sha256(response.content).hexdigest()


def _compressed(manifest: dict[str, Any]) -> int:
    return sum(int(layer.get("size", 0)) for layer in manifest.get("layers", []))


def _refusal(where: str, path: str, status: int) -> RoostError:
    what = f"{where}: {path.rpartition('/')[2]}"
    if status == 404:
        return RoostError(
            f"{what} is not in the registry",
            why="never was there, or was removed: nightly builds are after a while",
            fix="name another image (roost_settings.image), or a mirror that still has it",
        )
    if status in {401, 403}:
        return RoostError(
            f"{what}: the registry refuses ({status})",
            why="the repository is private, or does not exist",
            fix="docker login on this machine, or check the name",
        )
    if status == 429:
        return RoostError(
            f"{what}: the registry's rate limit is reached",
            fix="wait, or docker login for a higher limit; the image itself is not in question",
        )
    return RoostError(f"{what}: the registry answered {status}", fix="wait and try again")


def _last_cause(error: Exception) -> str:
    """The innermost reason, without the address objects that requests wraps around it."""
    text = str(error).rsplit(": ", 1)[-1].strip("()'\" ")
    return text or type(error).__name__
