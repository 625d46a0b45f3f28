"""Which faults the tests make, and what serves afterwards: the table in docs/reliability.md.

Run ``python -m tests.playbooks.faults docs/reliability.md`` after changing one; a test compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from roost.generating import target

#: Test modules that make faults, and the engine they make them with.
MODULES = {
    "test_deploy": "vLLM on the CPU",
    "test_transaction": "stand-in",
    "test_transaction_host": "stand-in",
}
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
#: What serves after most faults, and after some.
BACK = "the release before, proved again"
BY_ITSELF = "the new release: the host goes on by itself"
ORDER = ("engine", "controller", "network", "host")


def fault(of: str, what: str, then: str) -> pytest.MarkDecorator:
    """Mark a test with the fault it makes.

    Args:
        of: What misbehaves: ``engine``, ``controller``, ``network`` or ``host``.
        what: What it does.
        then: What serves afterwards, which the test asserts.
    """
    assert of in ORDER
    return pytest.mark.fault(of, what, then)


def marks(module: Any) -> Iterator[pytest.Mark]:
    """The faults of a test module, in the order of their tests."""
    for name in sorted(vars(module), key=lambda name: _line(vars(module)[name])):
        for mark in reversed(getattr(vars(module)[name], "pytestmark", [])):
            if mark.name == "fault":
                yield mark
            if mark.name == "parametrize":
                for values in mark.args[1]:
                    yield from (m for m in getattr(values, "marks", ()) if m.name == "fault")


def _line(thing: Any) -> int:
    code = getattr(thing, "__code__", None)
    return code.co_firstlineno if code else 0


def table() -> str:
    """The table, in Markdown."""
    rows: dict[str, list[str]] = {of: [] for of in ORDER}
    for name, engine in MODULES.items():
        for mark in marks(import_module(f"tests.playbooks.{name}")):
            of, what, then = mark.args
            rows[of].append(f"| {of} | {what} | {then} | {engine} |")
    lines = ["| what | fault | what serves afterwards | tested with |", "|---|---|---|---|"]
    return "\n".join([*lines, *(row for of in ORDER for row in rows[of])])


def renewed(page: str) -> str:
    """A page with the table in its place."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    path = target("tests.playbooks.faults", "docs/reliability.md")
    path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
