"""Strict YAML: duplicates, positions, messages, whichever parser reads."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost import yamlfile
from roost.errors import RoostError

HERE = Path("some/file.yml")
LOADERS = [yamlfile._Loader, yamlfile._PurePythonLoader]


@pytest.fixture(params=LOADERS, ids=lambda loader: loader.__name__)
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yamlfile, "_Loader", request.param)


def test_the_fast_parser_is_the_one_that_reads() -> None:
    """PyYAML's wheels carry libyaml; without it every command is slow, and nobody would notice."""
    assert LOADERS[0] is not LOADERS[1]


@pytest.mark.usefixtures("loader")
def test_lines_of_nested_keys_and_items() -> None:
    document = yamlfile.parse("a:\n  b: 1\n  c:\n    - x\n    - y\n", HERE)
    assert document.line(("a", "b")) == 2
    assert document.line(("a", "c", 1)) == 5
    assert document.line(("a", "missing")) == 1


@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "some/file.yml:3: key 'a' stands twice (first on line 1)"),
        ("a: {b: 1, b: 2}\n", "some/file.yml:1: key 'b' stands twice (first on line 1)"),
        ("a: &x [1]\nb: *x\n", "some/file.yml:2: aliases are not used here; write the value out"),
        ("a: &x {b: *x}\n", "some/file.yml:1: aliases are not used here"),
        ("a: [1\n", "some/file.yml:2: "),
        ("a: 1\n--- \nb: 2\n", "some/file.yml:2: but found another document"),
        ("? [1]\n: 2\n", "some/file.yml:1: a key must be plain text"),
        ("<<: {a: 1}\n", "some/file.yml:1: "),
        ("a: 1\nb: !!python/object:os.system x\n", "some/file.yml:2: tags are not used here"),
        ("a: !!bool perhaps\n", "some/file.yml:1: tags are not used here"),
        ("a: 2026-13-40\n", "some/file.yml: not valid YAML"),
        ("a: \0\n", "some/file.yml"),
        ("a: \ud800\n", "some/file.yml"),
        ("[" * 400_000, "nest"),
        ("{a: " * 100_000, "some/file.yml:1: nested more than 50 levels deep"),
        ("- " * 100_000, "some/file.yml:1: nested more than 50 levels deep"),
        ("? " * 100_000, "some/file.yml:1: nested more than 50 levels deep"),
    ],
    ids=lambda value: value[:30],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(RoostError) as caught:
        yamlfile.parse(text, HERE)
    assert message in str(caught.value)


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_any_text_is_read_or_refused_in_our_words(text: str) -> None:
    with contextlib.suppress(RoostError):
        yamlfile.parse(text, HERE)


_SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.text("ab: #'\"\n-é", max_size=8))


@given(
    st.recursive(
        _SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner),
        max_leaves=12,
    )
)
def test_both_parsers_read_the_same(data: object) -> None:
    import yaml

    text = yaml.safe_dump(data, allow_unicode=True)
    read = [(loader := make(text)).construct_document(loader.get_single_node()) for make in LOADERS]
    assert read == [data, data]


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(RoostError, match="no such file"):
        yamlfile.read(tmp_path / "absent.yml")
    binary = tmp_path / "binary.yml"
    binary.write_bytes(b"a: \xff\xfe\n")
    with pytest.raises(RoostError, match="is not UTF-8 text"):
        yamlfile.read(binary)
    huge = tmp_path / "huge.yml"
    huge.write_bytes(b"#" * (yamlfile.MAX_BYTES + 1))
    with pytest.raises(RoostError, match="which no file of this kind needs"):
        yamlfile.read(huge)
    with pytest.raises(RoostError, match="cannot be read"):
        yamlfile.read(tmp_path)
