"""The model hub, asked with its own client: what a name means, and what its files begin with."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from roost.errors import RoostError, UnansweredError
from roost.lock import LockedModel
from roost.onhost.weights import answers
from roost.pins import Repository

if TYPE_CHECKING:
    import httpx2
    from huggingface_hub import HfApi

#: Seconds until an unanswered question counts as no answer.
TIMEOUT = 20.0

#: Seconds until an answer that trickles in is given up.
DEADLINE = 120.0


#: Files whose content a lock records, for what a plan counts with is read from them.
FINGERPRINTED = ("config.json", "model.safetensors.index.json")

#: Largest of them worth reading; an index of 60,000 tensors has 6 MB.
_MOST = 64_000_000


_GIVEN = "roost_hub_token in the inventory, HF_TOKEN where there is none"


class HubUnavailableError(RoostError):
    """No hub answered, or it would not now: this says nothing about the repository."""


class HubUnansweredError(HubUnavailableError, UnansweredError):
    """Nothing answered at all."""


class HubRefusedError(RoostError):
    """The hub answers, and does not give: missing, private, gated, or no such revision."""


def resolve(repository: Repository, endpoint: str | None, token: str | None = None) -> LockedModel:
    """Ask the hub which commit a revision is, how many bytes it has, and what its config is.

    Args:
        repository: What the recipe names.
        endpoint: Hub or mirror; none: the client's own default.
        token: For gated repositories; none: what the client finds in its environment, except
            where the endpoint has no TLS.

    Raises:
        RoostError: No such repository (or private, or gated without a token), no such revision;
            each with its own reason.
        HubUnavailableError: No answer.
    """
    api = _client(endpoint, token)
    where = f"{repository.repo}@{repository.revision.name} on {api.endpoint}"
    with _answering(where):
        wanted = _expand(api, repository)
        info = api.model_info(
            repository.repo, revision=wanted, files_metadata=True, timeout=TIMEOUT
        )
    siblings = info.siblings or []
    if not info.sha or not re.fullmatch(r"[0-9a-f]{40}", info.sha) or not siblings:
        raise RoostError(f"{where}: the hub's answer names no commit or no files")
    return LockedModel(
        commit=info.sha,
        bytes=sum(sibling.size or 0 for sibling in siblings),
        files=len(siblings),
        fingerprints=_fingerprints(
            Snapshot(repository.repo, info.sha, endpoint, token),
            {sibling.rfilename for sibling in siblings},
        ),
        resolved=dt.datetime.now(dt.UTC).date(),
    )


def _fingerprints(snapshot: Snapshot, names: set[str]) -> dict[str, str | None]:
    """SHA-256 of the files that say what a checkpoint is; none for one that is not there."""
    found: dict[str, str | None] = {}
    for name in FINGERPRINTED:
        data, _ = snapshot.head(name, _MOST + 1) if name in names else (None, None)
        if data is not None and len(data) > _MOST:
            raise RoostError(
                f"{snapshot.label(name)}: is larger than {_MOST:,} bytes", why="no such file is"
            )
        found[name] = None if data is None else hashlib.sha256(data).hexdigest()
    return found


class Snapshot:
    """The files of one repository at one commit, looked at without downloading them.

    Args:
        repo: ``owner/name``.
        commit: 40 hexadecimal digits.
        endpoint: As for :func:`resolve`, and so is ``token``.
    """

    def __init__(
        self, repo: str, commit: str, endpoint: str | None = None, token: str | None = None
    ) -> None:
        self._repo, self._commit = repo, commit
        self._api = _client(endpoint, token)
        self.where = f"{repo}@{commit[:12]} on {self._api.endpoint}"

    def label(self, path: str) -> str:
        """A file's name in messages."""
        return f"{self.where}: {path}"

    def sizes(self) -> dict[str, int | None]:
        """Every file with its bytes; none where the hub does not say.

        Raises:
            RoostError: As :func:`resolve`.
        """
        with _answering(self.where):
            info = self._api.model_info(
                self._repo, revision=self._commit, files_metadata=True, timeout=TIMEOUT
            )
        if info.sha != self._commit:
            raise RoostError(
                f"{self.where}: the hub answers with another commit",
                why=f"its answer is about {info.sha}",
                fix="check what answers at that address (roost_hub_endpoint)",
            )
        return {sibling.rfilename: sibling.size for sibling in info.siblings or []}

    def head(self, path: str, count: int) -> tuple[bytes, int | None]:
        """The first bytes of a file.

        One ranged request, and redirects to where a hub keeps large files are followed. Of a
        server that ignores the range no more is read than was asked for.

        Args:
            path: Of the file in the repository.
            count: How many bytes, at least 1.

        Returns:
            That many bytes, fewer only where the file has no more; and the file's size, none
            where the hub does not say.

        Raises:
            RoostError: Refused, absent, cut off, or an answer about other bytes.
            HubUnavailableError: No answer, or one that takes too long.
        """
        from huggingface_hub import get_session, hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # lazily

        where = self.label(path)
        url = hf_hub_url(self._repo, path, revision=self._commit, endpoint=self._api.endpoint)
        headers = build_hf_headers(token=self._api.token)
        # A range counts the bytes that travel: compressed ones would be of no use.
        headers |= {"Range": f"bytes=0-{count - 1}", "Accept-Encoding": "identity"}
        deadline = time.monotonic() + DEADLINE
        data = bytearray()
        with (
            _answering(where),
            get_session().stream("GET", url, headers=headers, timeout=TIMEOUT) as response,
        ):
            if response.status_code == 416:
                return b"", 0  # only an empty file has no first byte
            if not response.is_success:
                raise _refusal(where, response)
            for chunk in response.iter_bytes():
                data += chunk
                if len(data) >= count:
                    break
                if time.monotonic() > deadline:
                    raise HubUnavailableError(
                        f"{where}: the hub is too slow: {len(data):,} bytes in {DEADLINE:.0f} s",
                        fix="try again, or name a nearer mirror (roost_hub_endpoint)",
                    )
            size = _file_size(where, response)
        if size is None and len(data) < count:
            size = len(data)
        if len(data) < count and len(data) != size:
            raise RoostError(
                f"{where}: the answer is cut off: {len(data):,} of {size:,} bytes",
                fix="try again; if it stays so, name another mirror (roost_hub_endpoint)",
            )
        return bytes(data[:count]), size


def _file_size(where: str, response: httpx2.Response) -> int | None:
    """The size of the whole file, from an answer with its beginning or all of it."""
    if response.status_code != 206:
        length = response.headers.get("Content-Length", "")
        return int(length) if length.isdecimal() else None
    found = re.fullmatch(r"bytes 0-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    if found is None:
        raise RoostError(
            f"{where}: asked for the first bytes, was given others",
            why=f"Content-Range: {response.headers.get('Content-Range')}",
            fix="check what answers at that address (roost_hub_endpoint), or name another mirror",
        )
    return None if found[1] == "*" else int(found[1])


def _client(endpoint: str | None, token: str | None) -> HfApi:
    from huggingface_hub import HfApi

    if token and not re.fullmatch(r"[!-~]+", token):
        # What is raised about such a header has the token in it.
        raise RoostError(
            "the hub's token has a character that no token has",
            why="a line break at its end, for example",
            fix="correct roost_hub_token",
        )
    api = HfApi(endpoint=endpoint and endpoint.rstrip("/"), token=token)
    if token is None and api.endpoint.startswith("http://"):
        # A token that the environment happens to hold does not go over the wire in the clear.
        api.token = False
    return api


@contextmanager
def _answering(where: str) -> Iterator[None]:
    """Whatever the client raises about a question, as an error for a person."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except HfHubHTTPError as error:
        raise _refusal(where, error.response) from None
    except httpx2.TimeoutException:
        raise HubUnansweredError(
            f"{where}: the hub did not answer within {TIMEOUT:.0f} s",
            fix="try again; check the network and the hub's address (roost_hub_endpoint)",
        ) from None
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        raise HubUnansweredError(
            f"{where}: the hub cannot be reached",
            why=" ".join(str(error).split()) or type(error).__name__,
            fix="check the network and the hub's address (roost_hub_endpoint, HF_ENDPOINT)",
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
        # The last is how the client takes an error whose JSON is not a mapping.
        raise HubUnavailableError(
            f"{where}: what answers is not a model hub",
            why="its answer cannot be read; a proxy's login page looks like this too",
            fix="check the hub's address (roost_hub_endpoint, --hub)",
        ) from None


def _refusal(where: str, response: httpx2.Response) -> RoostError:
    """What a hub means by an answer that is not what was asked for."""
    status, headers = response.status_code, response.headers
    with_token = "Authorization" in response.request.headers
    meant = answers.meaning(status, headers, with_token=with_token)
    kind = HubUnavailableError if answers.passes(status) else HubRefusedError
    if meant == "mirror":
        _, saw, fix = answers.MIRROR_REFUSALS[headers["X-Error-Code"]]
        return kind(f"{where}: {saw}", fix=fix[0].lower() + fix[1:])
    if meant in _MEANT:
        saw, why, fix = _MEANT[meant]
        return HubRefusedError(f"{where}: {saw}", why=why, fix=fix)
    # A signed address of a storage host is nothing to print; its name says enough.
    why = f"the answer is from {response.url.host}" if response.history else ""
    fix = "check the address"
    if answers.passes(status):
        wait = answers.asked_wait(headers)
        fix = f"wait {f'{wait:.0f} seconds ' if wait else ''}and try again"
    elif meant == "forbidden":
        fix = f"give a token that may read it: {_GIVEN}"
    return kind(f"{where}: the hub answered {status}", why=why, fix=fix)


#: What was seen, why, and what to do, for what needs no more than words.
_MEANT = {
    "gated": (
        "the repository is gated",
        "",
        f"accept its terms on the hub and give a token that opens it: {_GIVEN}",
    ),
    "token": (
        "the hub does not know the token",
        "it is expired, revoked or mistyped",
        f"make a new one on the hub: {_GIVEN}",
    ),
    "revision": (
        "no such revision",
        "the branch, tag or commit is gone, or never was there",
        "look at the repository's history and correct the recipe's revision",
    ),
    "entry": (
        "no such file",
        "the hub lists it and does not have it",
        "try again; if it stays so, the repository is broken at this revision",
    ),
    "repository": (
        "no such repository",
        "missing, private, or gated without a token: the hub answers the same to all three",
        f"check the name; for a private repository give a token: {_GIVEN}",
    ),
}


def _expand(api: HfApi, repository: Repository) -> str:
    """The revision to ask for; a shortened commit is looked up in the repository's history."""
    prefix = repository.revision.prefix
    if prefix is None:
        return repository.revision.name
    # Asked first for what it is without retries: the list's client asks a silent hub for half a
    # minute.
    newest = api.model_info(repository.repo, timeout=TIMEOUT).sha or ""
    if newest.startswith(prefix):
        return newest
    commits = [commit.commit_id for commit in api.list_repo_commits(repository.repo)]
    matches = [commit for commit in commits if commit.startswith(prefix)]
    if len(matches) == 1:
        return matches[0]
    raise RoostError(
        f"{repository.repo}@{prefix} on {api.endpoint}: "
        + ("no commit begins with it" if not matches else "several commits begin with it"),
        fix="look at the repository's history and write the full commit",
    )
