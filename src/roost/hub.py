"""The model hub, asked with its own client: what a name means and how large it is."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING

from roost.errors import RoostError
from roost.lock import LockedModel
from roost.pins import Repository

if TYPE_CHECKING:
    from huggingface_hub import HfApi

#: Seconds until an unanswered question counts as no answer.
TIMEOUT = 20.0


def resolve(repository: Repository, endpoint: str | None, token: str | None = None) -> LockedModel:
    """Ask the hub which commit a revision is and how many bytes it has.

    Args:
        repository: What the recipe names.
        endpoint: Hub or mirror; none: the client's own default.
        token: For gated repositories; none: what the client finds in its environment, except
            where the endpoint has no TLS.

    Raises:
        RoostError: No answer, no such repository (or private, or gated without a token), no such
            revision; each with its own reason.
    """
    import httpx2
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    # A token that the environment happens to hold does not go over the wire in the clear.
    plain = (endpoint or "").startswith("http://")
    api = HfApi(endpoint=endpoint, token=False if plain and token is None else token)
    where = f"{repository.repo}@{repository.revision.name} on {api.endpoint}"
    try:
        wanted = _expand(api, repository)
        info = api.model_info(
            repository.repo, revision=wanted, files_metadata=True, timeout=TIMEOUT
        )
    except GatedRepoError:
        raise RoostError(
            f"{where}: the repository is gated",
            fix="accept its terms on the hub and give a token in HF_TOKEN",
        ) from None
    except RevisionNotFoundError:
        raise RoostError(
            f"{where}: no such revision",
            why="the branch, tag or commit is gone, or never was there",
            fix="look at the repository's history and correct the recipe's revision",
        ) from None
    except RepositoryNotFoundError:
        raise _hidden(where) from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status == 401:
            raise _hidden(where) from None
        raise RoostError(
            f"{where}: the hub answered {status}",
            fix="wait and try again" if status == 429 or status >= 500 else "check the address",
        ) from None
    except (httpx2.HTTPError, OSError) as error:
        raise RoostError(
            f"{where}: the hub cannot be reached",
            why=str(error) or type(error).__name__,
            fix="check the network and the hub's address (roost_hub_endpoint, HF_ENDPOINT)",
        ) from None
    except (ValueError, KeyError, TypeError):
        raise RoostError(
            f"{where}: what answers is not a model hub",
            why="its answer cannot be read; a proxy's login page looks like this too",
            fix="check the hub's address (roost_hub_endpoint, --hub)",
        ) from None
    siblings = info.siblings or []
    if not info.sha or not re.fullmatch(r"[0-9a-f]{40}", info.sha) or not siblings:
        raise RoostError(f"{where}: the hub's answer names no commit or no files")
    return LockedModel(
        commit=info.sha,
        bytes=sum(sibling.size or 0 for sibling in siblings),
        files=len(siblings),
        resolved=dt.datetime.now(dt.UTC).date(),
    )


def _hidden(where: str) -> RoostError:
    return RoostError(
        f"{where}: no such repository",
        why="missing, private, or gated without a token: the hub answers the same to all three",
        fix="check the name; for a private repository give a token in HF_TOKEN",
    )


def _expand(api: HfApi, repository: Repository) -> str:
    """The revision to ask for; a shortened commit is looked up in the repository's history."""
    prefix = repository.revision.prefix
    if prefix is None:
        return repository.revision.name
    commits = [commit.commit_id for commit in api.list_repo_commits(repository.repo)]
    matches = [commit for commit in commits if commit.startswith(prefix)]
    if len(matches) == 1:
        return matches[0]
    raise RoostError(
        f"{repository.repo}@{prefix} on {api.endpoint}: "
        + ("no commit begins with it" if not matches else "several commits begin with it"),
        fix="look at the repository's history and write the full commit",
    )
