"""Fingerprints as data: what the schema refuses, and that every sentence of theirs can be said."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import jinja2.meta
import pytest

from roost.diagnose import advice, fingerprints
from roost.diagnose.fingerprints import Fingerprint
from roost.errors import RoostError
from roost.settings import Settings

GOOD = """\
fingerprints:
  - id: spam
    title: spam is {{ amount }}
    severity: error
    match:
      - find: spam is spam
        pattern: 'spam is spam (?P<amount> \\d+ )'
    values: {amount: number}
    why: there was {{ amount }}
    fix: eat it
    source: a menu
    date: 2026-11-29
"""


def write(folder: Path, text: str, name: str = "menu.yml") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_a_good_file_is_read(tmp_path: Path) -> None:
    (item,) = fingerprints.load(write(tmp_path, GOOD))
    assert item.id == "spam"
    assert item.match[0].regex.search("SPAMISSPAM12")


@pytest.mark.parametrize(
    ("good", "bad", "complaint"),
    [
        (
            "    fix: eat it\n",
            "    fxi: eat it\n",
            "menu.yml:10: fingerprints.0.fxi: unknown key, did you mean fix?",
        ),
        ("    fix: eat it\n", "", "fingerprints.0: error needs a `fix`"),
        ("severity: error", "severity: fatal", "menu.yml:4: fingerprints.0.severity"),
        ("find: spam is spam", "find: spam", "menu.yml:6: fingerprints.0.match.0.find"),
        ("find: spam is spam", "find: spam is spam 12", "must not hold 1 2"),
        ("\\d+ )", "\\d+", "menu.yml:7: fingerprints.0.match.0.pattern: is no regular expression"),
        ("values: {amount: number}", "values: {}", "the patterns name amount"),
        ("amount: number", "amount: figure", "fingerprints.0.values.amount"),
        ("date: 2026-11-29", "date: yesterday", "menu.yml:12: fingerprints.0.date"),
        ("- id: spam", "- id: Spam!", "menu.yml:2: fingerprints.0.id"),
        ("    why: there was {{ amount }}\n", "", "fingerprints.0.why: is missing"),
        ("    values:", "    versions: since 0.23\n    values:", "menu.yml:8: fingerprints.0.ver"),
    ],
)
def test_a_defect_is_named_with_its_place(
    tmp_path: Path, good: str, bad: str, complaint: str
) -> None:
    assert good in GOOD
    with pytest.raises(RoostError) as caught:
        fingerprints.load(write(tmp_path, GOOD.replace(good, bad)))
    assert complaint in str(caught.value)


def test_an_id_stands_once(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "a.yml")
    with pytest.raises(RoostError, match=r"b\.yml:2: spam stands in a\.yml already"):
        fingerprints.load(write(tmp_path, GOOD, "b.yml"))


def test_white_space_and_quotes_mean_nothing_to_a_pattern() -> None:
    pattern = fingerprints.compile_pattern("no ~ (?P<what> \\w+? ) ~ today")
    for text in ("no 'spam' today", 'no"spam"today', "nospamtoday", 'no \\"spam\\" today'):
        match = pattern.search("".join(text.split()))
        assert match
        assert match["what"] == "spam"


@pytest.mark.parametrize(
    ("version", "holds"),
    [("0.24.0", True), ("0.23.1rc1.dev968+g2c17d33f4", True), ("0.26.0", False), ("nightly", True)],
)
def test_versions(tmp_path: Path, version: str, holds: bool) -> None:
    text = GOOD.replace("    values:", '    versions: ">=0.23,<0.26"\n    values:')
    (item,) = fingerprints.load(write(tmp_path, text))
    assert item.holds_for(version) is holds
    assert item.holds_for(None)


BUILTIN = fingerprints.builtin()


@pytest.mark.parametrize("item", BUILTIN, ids=lambda item: item.id)
def test_sentences_use_what_there_is(item: Fingerprint) -> None:
    for sentence in (item.title, item.why, item.fix):
        parsed = advice.environment().parse(sentence)
        names = jinja2.meta.find_undeclared_variables(parsed)
        assert names <= {*item.values, "settings", "version"}
        assert not sentence.endswith(".")


@pytest.mark.parametrize("item", BUILTIN, ids=lambda item: item.id)
@pytest.mark.parametrize("version", [None, "0.24.0"])
def test_sentences_can_be_said(item: Fingerprint, version: str | None) -> None:
    examples: dict[str, advice.Value] = {
        "number": Decimal("12.5"),
        "word": "spam",
        "words": ["spam", "eggs"],
        "phrase": "spam and eggs",
        "rest": "spam and eggs",
    }
    values = {name: examples[kind] for name, kind in item.values.items()}
    settings: dict[str, object] = {**dict.fromkeys(Settings.model_fields), "port": None}
    for known in (settings, dict.fromkeys(settings, 7)):
        for sentence in (item.title, item.why, item.fix):
            said = advice.fill(sentence, values, settings=known, version=version)
            assert "{" not in said or "{{" in item.fix or '{"' in said
            assert "None" not in said


def test_figures_of_advice() -> None:
    assert advice.share(Decimal("74.9"), Decimal("142.5")) == "0.52"
    # In floating point 57 / 100 * 100 is less than 57.
    assert advice.share(Decimal(57), Decimal(100)) == "0.57"
    assert advice.share(Decimal("0.9"), Decimal(100)) == "0.00"
    assert advice.share(Decimal(100), Decimal(100)) == "1.0"
    assert advice.share(Decimal(1), Decimal(0)) == "0.00"
    # The pool that needs 5.08 GiB: 252 blocks of 10 layers and 2,162,688 bytes.
    assert advice.enough_bytes(Decimal("5.08")) >= 252 * 10 * 2_162_688
    assert advice.enough_bytes(Decimal("5.08")) % (1 << 20) == 0
    assert advice.enough_bytes(Decimal("4")) == round(4.5 * (1 << 30))


def test_the_nearest_name() -> None:
    backends = ["FLASH_ATTN", "TRITON_ATTN", "TRITON_MLA"]
    assert advice.closest("TRITON", backends) == "TRITON_ATTN"
    assert advice.closest("triton_attn", backends) == "TRITON_ATTN"
    assert advice.closest("FLSH_ATTN", backends) == "FLASH_ATTN"
    assert advice.closest("spam", backends) == ""


def test_the_page_names_every_file() -> None:
    page = (Path(__file__).parents[2] / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    for path in fingerprints.ROOT.glob("*.yml"):
        assert f"`{path.name}`" in page
    for name in (
        "share",
        "enough_bytes",
        "closest_flag",
        "renamed",
        "mended_json",
        "plus",
        "commas",
    ):
        assert name in advice.environment().filters
        assert f"`{name}`" in page
