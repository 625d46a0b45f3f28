"""A container registry, asked what a tag means and which platforms an image has.

No layer moves. Credentials come from Docker's own configuration, as for ``docker pull``; the
token dance is oras's. The request itself is made here, once and with a time limit: oras retries a
refused connection for half a minute before it says so.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from typing import TYPE_CHECKING, Any

from roost.errors import RoostError, UnansweredError
from roost.lock import LockedImage
from roost.pins import Image
from roost.references import split_mirror, split_registry

if TYPE_CHECKING:
    import requests

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


class GoneError(RoostError):
    """The registry answers, has the repository, and does not have this digest (any more)."""


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
        """The digest behind a tag or digest, and what each platform has of its own.

        Raises:
            GoneError: The digest is not in the registry.
            RoostError: No answer, no such tag or repository, no permission; each with its own
                reason.
        """
        manifest, digest = self._get(f"manifests/{image.name}", (*_INDEXES, *_MANIFESTS))
        sizes: dict[str, int] = {}
        digests: dict[str, str] = {}
        try:
            if "manifests" in manifest:
                for entry in manifest["manifests"]:
                    platform = entry.get("platform", {})
                    if platform.get("os") != "linux" or platform.get("architecture") == "unknown":
                        continue  # attestations and other systems
                    part, part_digest = self._get(f"manifests/{entry['digest']}", _MANIFESTS)
                    sizes[platform["architecture"]] = _compressed(part)
                    digests[platform["architecture"]] = part_digest
            else:
                config, _ = self._get(f"blobs/{manifest['config']['digest']}", ("*/*",))
                sizes[config["architecture"]] = _compressed(manifest)
                digests[config["architecture"]] = digest
        except (KeyError, TypeError, AttributeError, ValueError):
            raise RoostError(
                f"{self.where}: {image.name} is no image that is understood here",
                why="neither an image index nor a manifest with a configuration",
                fix="name an image that `docker pull` takes",
            ) from None
        return LockedImage(
            digest=digest,
            platforms=sorted(sizes),
            manifests=digests,
            bytes=sizes,
            resolved=dt.datetime.now(dt.UTC).date(),
        )

    def _get(self, path: str, accept: tuple[str, ...]) -> tuple[dict[str, Any], str]:
        """A JSON document and the digest of its bytes."""
        response = self._ask(path, accept)
        if response.status_code != 200:
            raise self._refusal(path, response)
        try:
            document = json.loads(response.content)
            if not isinstance(document, dict):
                raise ValueError
        except (ValueError, RecursionError):
            raise RoostError(
                f"{self.where}: the answer for {path} is not JSON",
                fix="check that a registry answers at that address, not a proxy's login page",
            ) from None
        digest = "sha256:" + hashlib.sha256(response.content).hexdigest()
        name = path.rpartition("/")[2]
        if name.startswith("sha256:") and name != digest:
            raise RoostError(
                f"{self.where}: asked for {name}, was given {digest}",
                why="the registry or something before it hands out another image",
                fix="do not pull from it; find out what answers there",
            )
        return document, digest

    def _ask(self, path: str, accept: tuple[str, ...] = ("*/*",)) -> requests.Response:
        import requests

        url, what = f"{self._url}/{path}", f"{self.where}: {path.rpartition('/')[2]}"
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
                f"{what}: no TLS connection to the registry",
                why=_last_cause(error),
                fix="for a registry without TLS on your own network write http:// before its "
                "address (roost_registry_mirror, --registry)",
            ) from None
        except (
            requests.exceptions.RequestException,
            ValueError,
            TypeError,
            AttributeError,
        ) as error:
            # The last three are how oras takes a challenge that is none.
            raise UnansweredError(
                f"{what}: the registry cannot be reached",
                why=_last_cause(error),
                fix="check the network and the registry's address (roost_registry_mirror)",
            ) from None
        found: requests.Response = response
        return found

    def _refusal(self, path: str, response: requests.Response) -> RoostError:
        """What a registry means by a status and the code in its answer."""
        name, status = path.rpartition("/")[2], response.status_code
        what, codes = f"{self.where}: {name}", _codes(response)
        if status in {401, 403}:
            return RoostError(
                f"{what}: the registry refuses ({status})",
                why="the repository is private, or does not exist",
                fix="docker login on this machine, or check the name",
            )
        if status == 429 or "TOOMANYREQUESTS" in codes:
            return RoostError(
                f"{what}: the registry's rate limit is reached",
                fix="wait, or docker login for a higher limit; the image itself is not in question",
            )
        absent = codes & {"MANIFEST_UNKNOWN", "BLOB_UNKNOWN"}
        # Some registries miss the manifest of a repository that they do not have at all.
        if "NAME_UNKNOWN" in (codes if not absent else _codes(self._ask("tags/list"))):
            return RoostError(
                f"{what}: the registry has no such repository",
                fix="check the image's name, and the registry's address (roost_registry_mirror)",
            )
        if absent and name.startswith("sha256:"):
            return GoneError(
                f"{what} is gone from the registry",
                why="it has the repository, and not this digest: nightly builds are removed after "
                "a while",
            )
        if absent:
            return RoostError(
                f"{what}: the registry has no such tag",
                why="it has the repository: the tag was removed, or never was there",
                fix="look at the repository's tags, and name another image (roost_settings.image)",
            )
        if status == 404:
            return RoostError(
                f"{what}: 404, without a word about what is not there",
                why="a registry says what it misses; this is a proxy, or a mirror of other images",
                fix="check the registry's address (roost_registry_mirror, --registry)",
            )
        return RoostError(f"{what}: the registry answered {status}", fix="wait and try again")


def _compressed(manifest: dict[str, Any]) -> int:
    return sum(int(layer.get("size", 0)) for layer in manifest.get("layers", []))


def _codes(response: requests.Response) -> set[str]:
    """The codes of a registry's error document; empty if it is none."""
    try:
        return {str(error["code"]) for error in json.loads(response.content)["errors"]}
    except (ValueError, KeyError, TypeError, RecursionError):
        return set()


def _last_cause(error: Exception) -> str:
    """The innermost reason, without the address objects that requests wraps around it."""
    text = str(error).rsplit(": ", 1)[-1].strip("()'\" ")
    # Brackets of its own were taken off with those around it.
    text += ")" * (text.count("(") - text.count(")"))
    return text or type(error).__name__
