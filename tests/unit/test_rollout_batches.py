"""How a fleet is divided into batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.errors import UsageError
from roost.rollout.batches import DEFAULT, Size, divide, parse


def hosts(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(1, count + 1)]


@pytest.mark.parametrize(
    ("count", "sizes", "expected"),
    [
        (1, DEFAULT, [1]),
        (2, DEFAULT, [1, 1]),
        (4, DEFAULT, [1, 1, 2]),
        (32, DEFAULT, [1, 8, 23]),
        # The last size goes on, as in Ansible's `serial`.
        (5, "2", [2, 2, 1]),
        (10, "10%,50%", [1, 5, 4]),
        (3, "25%", [1, 1, 1]),
        (3, "7", [3]),
        (7, "1,2,3", [1, 2, 3, 1]),
    ],
)
def test_sizes_of_one_kind(count: int, sizes: str, expected: list[int]) -> None:
    assert [len(batch) for batch in divide({"a": hosts("a", count)}, parse(sizes))] == expected


def test_each_kind_has_its_canary_and_later_batches_take_of_all_kinds() -> None:
    kinds = {"gb10": hosts("s", 8), "rtx5070ti-x2": hosts("d", 2)}
    assert divide(kinds, parse(DEFAULT)) == [
        ("s1",),
        ("d1",),
        ("s2", "s3", "d2"),
        ("s4", "s5", "s6", "s7", "s8"),
    ]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "''"),
        ("0", "'0'"),
        ("0%", "'0%'"),
        ("101%", "'101%'"),
        ("1,", "''"),
        ("one", "'one'"),
        ("-1", "'-1'"),
        ("1.5", "'1.5'"),
        ("25 %", "'25 %'"),
    ],
)
def test_what_is_no_size(text: str, word: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert f"{word} is no size of a batch" in caught.value.what
    assert caught.value.fix


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.lists(
        st.one_of(
            st.integers(1, 50).map(Size), st.integers(1, 100).map(lambda n: Size(n, percent=True))
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_every_host_is_in_one_batch_and_no_batch_is_empty(
    counts: list[int], sizes: list[Size]
) -> None:
    kinds = {str(at): hosts(f"{at}-", count) for at, count in enumerate(counts)}
    batches = divide(kinds, sizes)
    assert all(batches)
    placed = [host for batch in batches for host in batch]
    assert sorted(placed) == sorted(host for group in kinds.values() for host in group)
