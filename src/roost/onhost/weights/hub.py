"""A hub, asked with Python's standard library alone."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from .answers import CHECK_ADDRESS, no_answer, refusal
from .failures import SnapshotError


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows redirects; the token goes along only where host and scheme stay the same."""

    def redirect_request(self, req: Any, *args: Any) -> Any:
        following = super().redirect_request(req, *args)
        if following is not None and "Authorization" in req.unredirected_hdrs:
            before, after = (urllib.parse.urlsplit(one.full_url) for one in (req, following))
            if (before.scheme, before.netloc) == (after.scheme, after.netloc):
                following.add_unredirected_header(
                    "Authorization", req.unredirected_hdrs["Authorization"]
                )
        return following


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


class Hub:
    """A hub or a mirror of one.

    Args:
        endpoint: Its address, with no slash at its end.
        token: For private and gated repositories; sent to the endpoint alone.
        timeout: Seconds until an unanswered question counts as no answer.
        stall_timeout: Seconds without a byte until a transfer is broken off.
    """

    def __init__(self, endpoint: str, token: str | None, timeout: int, stall_timeout: int) -> None:
        self.endpoint = endpoint
        self.token = token
        self.timeout = timeout
        self.stall_timeout = stall_timeout
        self._following = urllib.request.build_opener(_SameHost())
        self._staying = urllib.request.build_opener(_NoRedirect())

    def open(
        self,
        where: str,
        path: str,
        *,
        query: str = "",
        timeout: float | None = None,
        headers: dict[str, str] | None = None,
        head_only: bool = False,
    ) -> Any:
        """The answer to one request, its body unread.

        Raises:
            SnapshotError: No answer, or one that is no success.
        """
        request = urllib.request.Request(  # noqa: S310  # http(s), the module sees to that
            self.endpoint + urllib.parse.quote(path) + query,
            headers={"User-Agent": "roost", "Accept-Encoding": "identity", **(headers or {})},
            method="HEAD" if head_only else "GET",
        )
        if self.token:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        opener = self._staying if head_only else self._following
        where += through(request)
        try:
            return opener.open(request, timeout=timeout or self.timeout)
        except urllib.error.HTTPError as error:
            if head_only and error.code in {301, 302, 303, 307, 308}:
                return error
            with error:  # it holds the connection
                raise refusal(where, error, self.token is not None) from None
        except (OSError, http.client.HTTPException) as error:
            raise no_answer(where, error, timeout or self.timeout) from None
        except ValueError as error:
            raise SnapshotError(
                "usage", f"{where}: the hub's address cannot be used ({error})", CHECK_ADDRESS
            ) from None


def through(request: urllib.request.Request) -> str:
    """Words that name the proxy a request goes through, without its credentials; else nothing."""
    proxy = urllib.request.getproxies().get(request.type)
    if not proxy or urllib.request.proxy_bypass(request.host):
        return ""
    address = proxy.rpartition("//")[2].rpartition("@")[2].rstrip("/")
    return f", through the proxy {address} ({request.type}_proxy; no_proxy excepts hosts from it)"
