"""Lines without what others put around them; blocks, words and secrets."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.diagnose import text
from roost.diagnose.text import CHUNK, LONGEST, Line, Passage
from roost.diagnose.words import Words
from roost.onhost.redaction import redact

SAID = '(EngineCore pid=9) ERROR 11-29 14:47:04 [core.py:1231]   File "/x.py", line 1, in f'


@pytest.mark.parametrize(
    "raw",
    [
        SAID,
        "\x1b[0;36m(EngineCore pid=9)\x1b[0;0m" + SAID.removeprefix("(EngineCore pid=9)"),
        "[0;36m(EngineCore pid=9)[0;0m" + SAID.removeprefix("(EngineCore pid=9)"),
        "#033[36m" + SAID,
        "2026-11-29T14:43:27.123456789Z " + SAID,
        "2026-11-29T14:43:27+0000 spark-01 docker[1234]: " + SAID,
        "Nov  9 14:43:27 spark-01 docker[1234]: " + SAID,
        "> > " + SAID,
        "    " + SAID,
        json.dumps({"log": SAID + "\n", "stream": "stderr", "time": "x"}, separators=(",", ":")),
        f"        {json.dumps(SAID)},",
        SAID + "\r",
        "\0".join(SAID) + "\0",
    ],
)
def test_a_line_is_what_its_program_wrote(raw: str) -> None:
    line = text.clean(raw.encode(), 7)
    assert line.text == '  File "/x.py", line 1, in f'
    assert (line.number, line.process, line.level) == (7, "EngineCore pid=9", "ERROR")


@pytest.mark.parametrize(
    ("raw", "process", "stream", "rest"),
    [
        ("(VllmWorker rank=0 pid=5) spam", "VllmWorker rank=0 pid=5", "", "spam"),
        ("(RayWorkerWrapper pid=5, ip=10.0.0.2) spam", "RayWorkerWrapper pid=5", "", "spam"),
        ("[2026-11-29 10:00:00 DP1 TP0] spam", "DP1 TP0", "", "spam"),
        ("vllm-1  | (APIServer pid=1) spam", "APIServer pid=1", "vllm-1", "spam"),
        ("[pod/vllm-0/vllm] spam", "", "pod/vllm-0/vllm", "spam"),
        ("[    1.234567] NVRM: Xid", "", "", "NVRM: Xid"),
        ("[rank0]: spam", "", "", "spam"),
        ("| N/A   36C    P8 |", "", "", "| N/A   36C    P8 |"),
        ("spam (pid=5) and eggs", "", "", "spam (pid=5) and eggs"),
    ],
)
def test_who_said_it(raw: str, process: str, stream: str, rest: str) -> None:
    line = text.clean(raw.encode(), 1)
    assert (line.process, line.stream, line.text) == (process, stream, rest)


def passage(*lines: str) -> Passage:
    return Passage([Line(at, said, width=len(said)) for at, said in enumerate(lines, 1)])


def test_a_passage_gives_back_what_was_written() -> None:
    whole = passage("spam  and", "", "  eggs")
    assert whole.squeezed == "spamandeggs"
    assert whole.slice(4, 7) == "and"
    assert whole.slice(0, 11) == "spam and eggs"
    assert whole.evidence(8, 9) == "eggs"
    assert whole.rest(4) == "and"


def test_a_wrapped_word_is_put_together_again() -> None:
    whole = passage("0123456 sp", "am and egg", "s")
    assert whole.slice(7, 11) == "spam"
    assert whole.rest(7) == "spam and eggs"
    assert passage("short", "0123456789").slice(0, 8) == "short 012"


@given(st.lists(st.text("ab \t", max_size=9), min_size=1, max_size=6))
def test_every_part_of_a_passage_is_found_again(lines: list[str]) -> None:
    whole = passage(*lines)
    for start in range(len(whole.squeezed)):
        part = whole.slice(start, len(whole.squeezed))
        assert "".join(part.split()) == whole.squeezed[start:]


@given(st.lists(st.binary(max_size=40).map(lambda raw: raw.replace(b"\n", b"")), max_size=40))
def test_blocks_give_every_line_with_its_number(lines: list[bytes]) -> None:
    lines = [line.replace(b"\\n", b"") for line in lines]
    data = b"".join(line + b"\n" for line in lines)
    for source in (data, io.BytesIO(data), lines, data.decode("latin-1").encode("latin-1")):
        read = [pair for block in text.blocks(source) for pair in zip(*block, strict=True)]
        assert read == [(line, number) for number, line in enumerate(lines, 1)]


def test_a_long_line_comes_in_pieces_of_one_number() -> None:
    data = b"a" * (3 * CHUNK) + b"\nend\n" + b"b" * (2 * CHUNK)
    read = [pair for block in text.blocks(io.BytesIO(data)) for pair in zip(*block, strict=True)]
    assert max(len(line) for line, _ in read) <= LONGEST
    assert b"".join(line for line, number in read if number == 1) == b"a" * (3 * CHUNK)
    assert (b"end", 2) in read
    assert b"".join(line for line, number in read if number == 3) == b"b" * (2 * CHUNK)


def test_escaped_line_ends_are_line_ends() -> None:
    blocks = text.blocks(rb'{"msg": "spam\r\neggs\nham"}')
    assert [pair for block in blocks for pair in zip(*block, strict=True)] == [
        (b'{"msg": "spam', 1),
        (b"eggs", 1),
        (b'ham"}', 1),
    ]


WORDS = [b"abcab", b"bcabca", b"aaaaa", b"caabbc", b"abcabc"]


@given(st.text("abc", max_size=60))
def test_words_are_found_as_one_by_one(said: str) -> None:
    where = [
        (at, number)
        for at in range(len(said))
        for number, word in enumerate(WORDS)
        if said.encode().startswith(word, at)
    ]
    assert list(Words(WORDS).search(said.encode())) == where


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("HF_TOKEN=hf_AbCdEfGh12", "HF_TOKEN=<redacted>"),
        ("--api-key 'sk-AbCdEf12'", "--api-key '<redacted>'"),
        ("--api-key plain-word", "--api-key <redacted>"),
        ("'api_key': ['AbCdEf12'], 'x': 1", "'api_key': ['<redacted>'], 'x': 1"),
        ("Authorization: Bearer AbCdEf12", "Authorization: Bearer <redacted>"),
        ("https://me:AbCdEf@hub/x", "https://me:<redacted>@hub/x"),
        ("VLLM_API_KEY=AbCdEf12 spam", "VLLM_API_KEY=<redacted> spam"),
        ("a bearer token is required", "a bearer token is required"),
        ("max_num_batched_tokens: 2048000", "max_num_batched_tokens: 2048000"),
        ("sudo: a password is required", "sudo: a password is required"),
    ],
)
def test_redaction(said: str, shown: str) -> None:
    assert redact(said) == shown
    assert redact(shown) == shown
