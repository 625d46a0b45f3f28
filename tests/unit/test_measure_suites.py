"""Suites and prompt sets: what is in the files, and what is refused."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from roost import catalog, yamlfile
from roost.errors import UsageError
from roost.measure import points, questions, render_prompts, suites
from roost.measure.benchmark import planning
from roost.measure.benchmark.planning import Plan
from roost.measure.benchmark.session import file_of, kept_files
from roost.measure.suites import Repetitions, Suite

SUITES = suites.catalogue()
FILE = Path(suites.__file__).with_name("suites.yml")


def data(name: str, **changes: Any) -> dict[str, Any]:
    return {**yamlfile.read(FILE).data[name], **changes}


def test_the_four_protocols_and_a_quick_look() -> None:
    names = ["smoke", "spec-bench", "prompt-length", "matrix", "prompt-style", "gate"]
    assert list(SUITES) == names
    ids = {name: [cell.id for cell in suites.cells(suite)] for name, suite in SUITES.items()}
    assert ids["smoke"] == ["code-c1", "prose-c1"]
    assert ids["matrix"] == ["mixed-c1", "mixed-c4", "mixed-c8"]
    assert ids["prompt-length"][-1] == "250K-c1"
    assert len(ids["prompt-style"]) == 16
    assert ids["spec-bench"] == [
        f"{category}-c1"
        for category in (
            "coding", "translation", "summarization", "rag", "qa", "math_reasoning",
        )
    ]  # fmt: skip


def test_the_matrix_asks_forty_prompts_with_every_kind_at_all_times() -> None:
    cell = suites.cells(SUITES["matrix"])[0]
    assert len(cell.prompts) == 40
    for at in range(0, 40, 4):
        kinds = {prompt.category for prompt in cell.prompts[at : at + 4]}
        assert kinds == {"chat", "code", "math", "stem"}


def test_every_user_has_something_to_ask() -> None:
    for name, suite in SUITES.items():
        for cell in suites.cells(suite):
            assert len(cell.prompts) >= cell.concurrency * suite.requests_per_user, (name, cell.id)


@pytest.mark.parametrize("name", ["kinds", "spec", "styles"])
def test_prompts_are_each_there_once(name: str) -> None:
    prompts = suites.read_prompts(FILE.parent / "prompts" / f"{name}.jsonl")
    assert max(Counter(prompt.text for prompt in prompts).values()) == 1
    assert len(set(Counter(prompt.category for prompt in prompts).values())) == 1


def test_suites_find_the_tables_that_were_published() -> None:
    """Every point of the protocol that its author published has the author's figure."""
    known = catalog.current()

    def found(
        recipe: str, hardware: str, speculation: str, suite: str, depth: int | None = None
    ) -> dict[str, float]:
        chosen = SUITES[suite]
        assert chosen.published
        own = known.recipe(recipe).speculation[speculation].settings.num_speculative_tokens
        return {
            f"{cell.id} {one.metric}": one.value
            for cell in suites.cells(chosen)
            for one in points.published(
                known.recipe(recipe).published(),
                hardware=hardware,
                speculation=speculation,
                tables=chosen.published.tables,
                match=dict(cell.match),
                depth=depth or own,
                own_depth=own,
            )
        }

    spec = found("ornith-1.0-35b-heretic-nvfp4-dflash", "gb10", "dflash", "spec-bench")
    assert len(spec) == 12
    assert spec["coding-c1 output_throughput"] == 93.41
    assert spec["math_reasoning-c1 accept_length"] == 3.99
    length = found("ornith-1.0-35b-fp8", "gb10", "none", "prompt-length")
    # In ms, as we measure it; the author gives seconds.
    assert (length["0.5K-c1 ttft"], length["250K-c1 ttft"]) == (190, 105700)
    assert length["32K-c1 decode_speed"] == 34.3
    matrix = found("ornith-1.5-35b-nvfp4-dflash2", "h200", "dflash2", "matrix")
    assert (matrix["mixed-c8 output_throughput"], matrix["mixed-c8 tpot"]) == (1351.6, 4.09)
    assert len(matrix) == 15
    style = found("qwen3.5-27b-aeon-nvfp4-dflash", "gb10", "dflash", "prompt-style")
    assert (style["prose-c16 output_throughput"], style["dialogue-c1 tpot"]) == (151.8, 26.0)
    assert not found("ornith-1.0-35b-fp8", "h200", "none", "prompt-length")
    # With twice as deep drafts than the author's: another accept length, and another speed.
    assert not found("ornith-1.0-35b-heretic-nvfp4-dflash", "gb10", "dflash", "spec-bench", 8)
    # He does not say how deep; then it is as deep as the recipe has it.
    assert not found("ornith-1.5-35b-nvfp4-dflash2", "h200", "dflash2", "matrix", 3)


def made(suite: Suite, *texts: str) -> Plan:
    prompts = [suites.Prompt(str(at), "own", text) for at, text in enumerate(texts or ("Why?",))]
    return Plan("smoke", suite, suites.cells(suite, prompts), "mine")


def test_the_question_is_a_hash_of_what_is_asked() -> None:
    # By sha256sum, of
    # {"fresh": true, "ignore_eos": true, "output_tokens": 32, "points": [["own-c1", 1, ["Why?"]]],
    #  "warmups": 1}
    assert made(SUITES["smoke"]).question == "smoke:166a67d07371"
    # Those that kept runs have: another one makes all of them incomparable.
    kept = {name: planning.plan(name).question for name in SUITES}
    # By sha256sum, of the like with the lengths in place of texts, and before "fresh"
    # {"filler": ["The harbour … instead. ", "\\n\\nContinue this record in the same manner."], …
    assert kept["prompt-length"] == "prompt-length:74f2c63ae1dc"
    assert set(kept.values()) == set(questions.FORMER.values())


@pytest.mark.parametrize("text", ["FILLER", "QUESTION"])
def test_prompts_made_to_length_are_asked_in_these_words(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    before = {name: planning.plan(name).question for name in SUITES}
    # As it was kept before the words were part of the hash; all of those were asked the same ones.
    assert questions.same("prompt-length:a9fac233c4cc", before["prompt-length"])
    monkeypatch.setattr(render_prompts, text, "The lamp is lit at dusk. ")
    after = {name: planning.plan(name).question for name in SUITES}
    assert [name for name in SUITES if after[name] != before[name]] == ["prompt-length"]
    assert questions.same("prompt-length:a9fac233c4cc", after["prompt-length"]) is False


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"title": "x", "source": "y", "protocol": "z", "published": None}, True),
        ({"repetitions": Repetitions(least=3, most=9, tight=0.01)}, True),
        ({"output_tokens": 33}, False),
        ({"ignore_eos": False}, False),
        ({"fresh": False}, False),
        ({"warmups": 2}, False),
        ({"concurrency": [2]}, False),
    ],
)
def test_what_is_no_part_of_the_question(changes: dict[str, Any], same: bool) -> None:
    before, after = SUITES["smoke"], SUITES["smoke"].model_copy(update=changes)
    assert (made(before).question == made(after).question) is same


def test_another_prompt_is_another_question() -> None:
    assert made(SUITES["smoke"], "Why?").question != made(SUITES["smoke"], "How?").question
    longer = SUITES["prompt-length"].model_copy(update={"lengths": {"0.5K": 512}})
    shorter = longer.model_copy(update={"lengths": {"0.5K": 511}})
    asked = [Plan("x", one, suites.cells(one), "") for one in (longer, shorter)]
    assert asked[0].question != asked[1].question


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"concurency": [1]}, "Extra inputs"),
        ({"concurrency": []}, "at least 1"),
        ({"output_tokens": "32"}, "valid integer"),
        ({"prompts": "filler"}, "lengths go with"),
        ({"repetitions": {"least": 3, "most": 2, "tight": 0.1}}, "least is above most"),
    ],
)
def test_a_suite_is_read_strictly(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Suite.model_validate(data("smoke", **changes))


def test_an_unknown_suite_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"did you mean matrix\?.*prompt-style"):
        suites.suite("matrx")


def test_a_users_own_prompts_and_spec_bench_itself(tmp_path: Path) -> None:
    rows = [
        {"prompt": "What?"},
        {"prompt": "Why?", "category": "hard", "id": "w"},
        {"question_id": 81, "category": "writing", "turns": ["First.", "Second."]},
        {"question_id": 82, "category": "qa", "turns": ["One."], "reference": ["x"]},
    ]
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    prompts = suites.read_prompts(path)
    assert [(prompt.id, prompt.category, prompt.text) for prompt in prompts] == [
        ("line-1", "own", "What?"),
        ("w", "hard", "Why?"),
        ("81", "writing", "First."),
        ("82", "qa", "One."),
    ]
    cells = suites.cells(SUITES["spec-bench"], prompts)
    assert [cell.id for cell in cells] == ["own-c1", "hard-c1", "writing-c1", "qa-c1"]
    # Eight requests for four users, from three prompts: every prompt as often as the others.
    three = [suites.Prompt(str(at), "own", "x") for at in range(3)]
    sizes = [len(cell.prompts) for cell in suites.cells(SUITES["prompt-style"], three)]
    assert sizes == [3, 9, 18, 33]
    with pytest.raises(UsageError, match="takes no file"):
        suites.cells(SUITES["prompt-length"], prompts)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": ""}', ":1: prompt: String should have at least 1"),
        ('{"prompt": "x", "categroy": "y"}', ":1: categroy: Extra inputs"),
        ('{"prompt": "x", "category": "a/b"}', ":1: category"),
        # As part of a file's name it would break the run in its middle.
        (json.dumps({"prompt": "x", "category": "c" * 240}), ":1: category: .* at most 50 char"),
        ('["x"]', ":1: neither a prompt"),
        ("{", ":1: neither a prompt"),
        ('{"turns": [], "question_id": 1, "category": "x"}', ":1: neither a prompt"),
        ("", "no prompt in it"),
        ('{"prompt": "x", "id": "a"}\n{"prompt": "y", "id": "a"}', "id 'a' is there 2 times"),
        ("[" * 100_000, ":1: neither a prompt"),
    ],
)
def test_a_bad_file_of_prompts_is_refused(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(line)
    with pytest.raises(UsageError, match=message):
        suites.read_prompts(path)


def test_a_file_that_begins_with_a_mark_of_its_byte_order_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "x"}\n')
    assert [prompt.text for prompt in suites.read_prompts(path)] == ["x"]


def test_the_longest_category_fits_into_every_name_of_a_file() -> None:
    """A letter may have four bytes; a file is written under a longer name at first."""
    (cell,) = suites.cells(SUITES["smoke"], [suites.Prompt("a", "\U00020000" * 50, "x")])
    longest = max(len(name.encode()) for name in kept_files(file_of(cell.id, 99)))
    assert longest + len("..01234567.new") <= 255


def test_a_missing_file_of_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        suites.read_prompts(tmp_path / "none.jsonl")


def test_a_large_file_of_prompts_is_read_in_seconds(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "x"}\n' * 60_000)
    began = time.thread_time()  # not what a busy machine does meanwhile
    assert len(suites.read_prompts(path)) == 60_000
    assert time.thread_time() - began < 30


def test_a_file_of_prompts_that_is_far_too_large_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    with path.open("wb") as file:
        file.truncate(200 * 2**20)
    with pytest.raises(UsageError, match="200 MiB of prompts, 32 at the most"):
        suites.read_prompts(path)
