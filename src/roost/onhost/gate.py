"""The quality gate: what an engine must show before it may stay.

Healthy says that an engine listens. The gate asks whether it answers rightly, as the same release
did before, accepts its drafts, and is about as fast as what it replaces.
"""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from . import counters
from .endpoint import Endpoint, Reply
from .judging import NO_DRAFTS, NOT_JUDGED, answer_text, check, judge

#: At temperature 0 two requests may still part at a near tie: a block of drafts and a single token
#: round differently in bfloat16, as do a cached and a computed prefix.
ANSWER_ATTEMPTS = 3
#: Other work on the host makes an engine slower, and other clients' requests count among the
#: drafts; neither lasts. What falls short is measured again, and the best counts.
ROUNDS = 3


class Gate:
    """One engine, and what is asked of it.

    Args:
        endpoint: The engine.
        wanted: ``gate`` of the deployment.
        timeout: Seconds one answer may take.

    Attributes:
        hung_up: Whether a request got no answer at all, as from an engine that ends.
    """

    def __init__(self, endpoint: Endpoint, wanted: Mapping[str, Any], timeout: float) -> None:
        self._endpoint = endpoint
        self._wanted = wanted
        self._timeout = timeout
        self.hung_up = False

    def warm_up(self) -> Reply:
        """The first answer may still compile kernels: nobody judges it."""
        return self._ask(self._wanted["requests"][0])

    def closed(self) -> list[dict[str, Any]]:
        """That a request without the API key is refused."""
        reply = self._endpoint.get("/v1/models", self._timeout, keyless=True)
        why = "whoever reaches it is served" if reply.status == 200 else ""
        return [check("api_key", reply.status == 401, "401", f"HTTP {reply.status}", why)]

    def answers(self) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """Right answers to the fixed questions.

        Returns:
            A check for each, and the answers by question.
        """
        checks, texts = [], {}
        for question, request in zip(self._wanted["questions"], self._wanted["requests"]):
            reply = self._ask(request)
            checks.append(judge(question, reply.body))
            texts[question["id"]] = answer_text(reply.body) or ""
        return checks, texts

    def same_answers(
        self, texts: Mapping[str, str], baseline: Mapping[str, Any] | None
    ) -> list[dict[str, Any]]:
        """That every answer is, word for word, what the same model and settings gave before.

        Args:
            texts: Answers by question.
            baseline: Of a release; ignored if its output may rightly differ.
        """
        if not self._wanted["same_answers"] or not baseline:
            return []
        if baseline["output_key"] != self._wanted["output_key"]:
            return []
        checks = []
        for question, request in zip(self._wanted["questions"], self._wanted["requests"]):
            before, text = baseline["answers"].get(question["id"]), texts[question["id"]]
            for _ in range(ANSWER_ATTEMPTS - 1):
                if text == before:
                    break
                text = answer_text(self._ask(request).body) or ""
            same = text == before
            why = "" if same else "the same model and settings answered otherwise before"
            checks.append(check(f"same_{question['id']}", same, str(before), text, why))
        return checks

    def figures(
        self, reference: Mapping[str, Any] | None
    ) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """Accept length and speed, measured by the gate's own requests, and what they must reach.

        Args:
            reference: ``{id, figures_key, figures}`` of the release to compare with; ignored if
                its figures are of something else.

        Returns:
            A check for each floor, and the figures: ``accept_length`` in tokens per step,
            ``tokens_per_second`` of one request at a time.
        """
        best: dict[str, float] = {}
        checks: list[dict[str, Any]] = []
        for _ in range(ROUNDS):
            for name, value in self._measure().items():
                best[name] = max(value, best.get(name, 0.0))
            checks = [*self._accepts(best, reference), *self._is_fast(best, reference)]
            if all(found["ok"] for found in checks):
                break
        return checks, best

    def _measure(self) -> dict[str, float]:
        before = self._metrics()
        tokens, seconds = 0, 0.0
        for request in self._wanted["measured"]:
            reply = self._ask(request)
            try:
                tokens += reply.body["usage"]["completion_tokens"]
            except (KeyError, TypeError):
                continue
            seconds += reply.seconds
        figures = {}
        if tokens and seconds:
            figures["tokens_per_second"] = round(tokens / seconds, 2)
        length = counters.accept_length(before, self._metrics())
        if length is not None:
            figures["accept_length"] = round(length, 3)
        return figures

    def _accepts(
        self, figures: Mapping[str, float], reference: Mapping[str, Any] | None
    ) -> list[dict[str, Any]]:
        # Releases that were recorded by an older roost do not say it.
        if why := self._wanted.get("uncounted"):
            return [check("accept_length", True, "accepted drafts", NOT_JUDGED, why)]
        at_least = self._wanted["min_accept_length"]
        if at_least is None:
            return []
        length = figures.get("accept_length")
        expected = f"{at_least:g} tokens per step"
        before = self._before(reference, "accept_length", "accept_length_floor")
        if before is not None and reference is not None and before > at_least:
            at_least = before
            share = self._wanted["accept_length_floor"]
            expected = (
                f"{at_least:.2f} tokens per step: {share:g} of the "
                f"{reference['figures']['accept_length']:g} that {reference['id']} accepted"
            )
        if length is None:
            why = "no draft was verified, by the engine's own counters"
            return [check("accept_length", False, expected, NO_DRAFTS, why)]
        ok = length >= at_least
        why = "" if ok else "the drafter fits this model worse than it did, or not at all"
        return [check("accept_length", ok, expected, f"{length:.2f}", why)]

    def _is_fast(
        self, figures: Mapping[str, float], reference: Mapping[str, Any] | None
    ) -> list[dict[str, Any]]:
        at_least = self._before(reference, "tokens_per_second", "speed_floor")
        if at_least is None or reference is None:
            return []
        speed = figures.get("tokens_per_second", 0.0)
        expected = (
            f"{at_least:.1f} tokens/s: {self._wanted['speed_floor']:g} of the "
            f"{reference['figures']['tokens_per_second']:g} of {reference['id']}"
        )
        ok = speed >= at_least
        why = "" if ok else f"slower in each of {ROUNDS} rounds"
        return [check("speed", ok, expected, f"{speed:.1f} tokens/s", why)]

    def _before(self, reference: Mapping[str, Any] | None, figure: str, floor: str) -> float | None:
        """What a floor, as a share of the reference's figure, comes to."""
        if not reference or reference["figures_key"] != self._wanted["figures_key"]:
            return None
        before = reference["figures"].get(figure)
        return before * self._wanted[floor] if before else None

    def _metrics(self) -> str:
        return str(self._endpoint.get(self._wanted["metrics_path"], self._timeout).body)

    def _ask(self, request: Mapping[str, Any]) -> Reply:
        reply = self._endpoint.chat(request, self._timeout)
        self.hung_up = self.hung_up or reply.status == 0
        return reply


def failed(checks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The checks that failed."""
    return [found for found in checks if not found["ok"]]
