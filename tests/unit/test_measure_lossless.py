"""Greedy texts with speculation against those without."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.stand_in_engine import OTHER
from tests.unit.test_measure_verify import Site, make_site  # noqa: F401  # a fixture

from roost import runs
from roost.errors import UsageError
from roost.measure import lossless, verify
from roost.measure.checks import Evidence
from roost.measure.lossless import Greedy, Token

TEXT = "A hash table maps keys."
REFERENCE = Greedy(
    prompt="What is it?",
    text=TEXT,
    tokens=[
        Token(text="A hash", logprob=-0.1),
        Token(text=" table", logprob=-0.7, others={" map": -0.8, " function": -5.0}),
        Token(text=" maps keys.", logprob=-0.2),
        Token(text="<|im_end|>", logprob=-0.4, others={" They": -0.6}),
    ],
)


def test_the_same_text() -> None:
    assert lossless.part(REFERENCE, TEXT, lossless.NEAR_TIE) is None


@pytest.mark.parametrize(
    ("text", "near_tie", "says"),
    [
        ("A hash map links keys.", True, "after 'A hash' came ' map links keys.' instead of"),
        ("A hash function maps.", False, "a token 4.300 nats less likely"),
        ("A hash browns.", False, "none of the likely ones"),
        ("A hash table maps keys. They are", True, "instead of '<|im_end|>'"),
        # It ended where ending was not likely.
        ("A hash", False, "none of the likely ones"),
    ],
)
def test_where_texts_part(text: str, near_tie: bool, says: str) -> None:
    parting = lossless.part(REFERENCE, text, lossless.NEAR_TIE)
    assert parting is not None
    assert parting.near_tie == near_tie
    assert says in parting.says


DOLPHIN = "\N{DOLPHIN}"
#: A character of three tokens, as engines give them: vLLM says all of it with the last, others say
#: that they do not know it, or its bytes.
SPELLINGS = {
    "with the last": ["", "", DOLPHIN],
    "with a space": ["", " " + DOLPHIN],
    "unknown": ["\ufffd", "\ufffd", "\ufffd"],
    "bytes": [one.decode("latin-1") for one in (b"\xf0\x9f", b"\x90", b"\xac")],
}


def spelt(*characters: str, others: dict[str, float] | None = None) -> Greedy:
    fragments = [Token(text=text, logprob=-0.1) for text in characters]
    if others:
        fragments[0] = fragments[0].model_copy(update={"others": others})
    return Greedy(
        prompt="Name one.",
        text=f"1. {DOLPHIN} Dolphin is",
        tokens=[
            Token(text="1.", logprob=-0.1),
            *([] if characters[-1].startswith(" ") else [Token(text=" ", logprob=-0.1)]),
            *fragments,
            Token(text=" Dolphin", logprob=-0.1),
            Token(text=" is", logprob=-0.70, others={" lives": -0.75, "": -0.72}),
        ],
    )


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_character_of_several_tokens_is_compared_and_passed(spelling: str) -> None:
    reference = spelt(*SPELLINGS[spelling])
    assert lossless.part(reference, reference.text, lossless.NEAR_TIE) is None
    tie = lossless.part(reference, f"1. {DOLPHIN} Dolphin lives", lossless.NEAR_TIE)
    assert tie is not None
    assert tie.near_tie
    assert tie.after == len(f"1. {DOLPHIN} Dolphin")
    lost = lossless.part(reference, f"1. {DOLPHIN} Dolphin swims", lossless.NEAR_TIE)
    assert lost is not None
    assert not lost.near_tie
    assert "instead of ' is', none of the likely ones" in lost.says


def test_part_of_a_character_is_another_character_and_no_word() -> None:
    reference = spelt(*SPELLINGS["with the last"], others={"": -0.2, "**": -3.0})
    another = lossless.part(reference, "1. \N{WHALE} Whale is", lossless.NEAR_TIE)
    assert another is not None
    assert another.near_tie
    word = lossless.part(reference, "1. Whale is", lossless.NEAR_TIE)
    assert word is not None
    assert not word.near_tie


def test_a_tie_needs_the_likelihoods_and_a_fine_format_has_none() -> None:
    bare = Greedy(prompt="What is it?", text=TEXT)
    parting = lossless.part(bare, "A hash map.", lossless.NEAR_TIE)
    assert parting is not None
    assert not parting.near_tie
    parting = lossless.part(REFERENCE, "A hash map.", lossless.NEAR_TIE_FLOAT32)
    assert parting is not None
    assert not parting.near_tie


def test_ties_at_the_first_words_show_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes after a tie is another text; of four such answers nothing has been compared."""
    target: Any = SimpleNamespace(
        deployment=SimpleNamespace(speculates=True), endpoint=lambda: None, tunnel=None
    )
    first = Token(text="A hash", logprob=-0.7, others={"One": -0.8})
    early = REFERENCE.model_copy(update={"tokens": [first, *REFERENCE.tokens[1:]]})

    def judged(*texts: str) -> tuple[str, str]:
        reference = lossless.Reference(identity={}, answers=[early] * len(texts))
        said = iter(texts)
        monkeypatch.setattr(
            lossless, "_ask", lambda *_: Greedy(prompt=early.prompt, text=next(said))
        )
        made = lossless.check(target, Evidence(), {}, reference)
        return made.verdict, made.observed

    assert judged("One map", "One", "One more", TEXT) == (
        "not seen",
        "1 of 4 word for word, 3 up to a near tie: 25% of the text",
    )
    assert judged("One map", TEXT, TEXT, TEXT)[0] == "pass"
    assert judged("One map", "One", "One more", "Two")[0] == "fail"


# --- through a verification -----------------------------------------------------------------------


@pytest.fixture
def kept(make_site: Callable[..., Site], tmp_path: Path) -> Path:  # noqa: F811
    """The run of a host without speculation, and the stand-in engine as it was then."""
    site = make_site(roost_speculation="none")
    site.engine.speculates = False
    evidence = site.verify()
    folder = tmp_path / "runs" / "plain"
    folder.mkdir(parents=True)
    runs.Run("verify", folder, site.host, site.deployment, NOW).finish(evidence)
    site.engine.speculates = True
    return folder


NOW = runs.dt.datetime(2026, 11, 29, tzinfo=runs.dt.UTC)


def with_speculation(make: Callable[..., Site], tmp_path: Path) -> Site:
    return make(roost_model_dir=str(tmp_path / "again"))


def test_a_run_without_speculation_keeps_its_answers(kept: Path) -> None:
    answers = json.loads((kept / lossless.FILE).read_text())["answers"]
    assert [each["prompt"] for each in answers] == list(lossless.PROMPTS)
    assert answers[0]["text"] == OTHER
    assert "".join(token["text"] for token in answers[0]["tokens"]) == OTHER
    check = next(one for one in runs.read(kept).checks if one.id == "lossless")
    assert check.verdict == "not applicable"
    assert "can be a reference" in check.why


def test_a_reference_that_is_met(
    make_site: Callable[..., Site],  # noqa: F811
    kept: Path,
    tmp_path: Path,
) -> None:
    site = with_speculation(make_site, tmp_path)
    assert site.check("lossless").why.startswith("no reference")
    check = site.check("lossless", reference="plain", runs_dir=kept.parent)
    assert (check.verdict, check.observed) == ("pass", "4 of 4 word for word")
    assert check.expected.startswith("the greedy answers of plain")


def test_a_reference_that_is_missed(
    make_site: Callable[..., Site],  # noqa: F811
    kept: Path,
    tmp_path: Path,
) -> None:
    site = with_speculation(make_site, tmp_path)
    site.engine.answers["sea"] = "A hash chain maps keys."
    check = site.check("lossless", reference=str(kept))
    assert check.verdict == "fail"
    assert "after 'A hash ' came 'chain maps" in check.why
    assert check.observed == "3 of 4 word for word"


def test_references_that_are_none(
    make_site: Callable[..., Site],  # noqa: F811
    kept: Path,
    tmp_path: Path,
) -> None:
    site = with_speculation(make_site, tmp_path)

    def refused(named: object, deployment: object = site.deployment) -> str:
        with pytest.raises(UsageError) as caught:
            verify.options(deployment, reference=named, runs_dir=tmp_path / "runs")  # type: ignore[arg-type]
        return str(caught.value)

    assert "reference other: no such run" in refused("other")
    assert "no finished run" in refused(str(tmp_path))
    half = make_site(roost_model_dir=str(tmp_path / "half"), roost_settings={"dtype": "bfloat16"})
    assert "dtype is float32, here bfloat16" in refused("plain", half.deployment)
    (kept / lossless.FILE).unlink()
    assert "keeps no greedy answers" in refused("plain")
    plain = make_site(roost_speculation="none", roost_model_dir=str(tmp_path / "plain"))
    with pytest.raises(UsageError, match="nothing speculates here"):
        verify.options(plain.deployment, reference="plain")
    result = kept / "result.json"
    result.write_text(result.read_text().replace('"ok": true', '"ok": false', 1))
    assert "did not pass itself" in refused("plain")
