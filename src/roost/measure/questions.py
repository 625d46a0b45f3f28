"""What two benchmarks must share to be compared: the question, a suite's name and a hash.

The hash is of what is asked of a server (:attr:`roost.measure.benchmark.planning.Plan.question`).
It once was of the whole suite, its title and source too, so the two kinds cannot be told equal
where the file of prompts was a user's own. Of roost's own suites it is known which was which, but
for ``prompt-length``, which had other warm-ups; its later hash lacked the texts of its prompts.
"""

from __future__ import annotations

#: Between a suite's name and the hash of what it asks; the former kind has a hyphen there.
MARK = ":"
#: Of roost's own suites and prompts: a question as it was once kept, and as it is kept now.
FORMER = {
    "smoke-98ff3cc4c2b0": "smoke:0a37eb189d30",
    "spec-bench-698d770b79af": "spec-bench:97593fdd02fc",
    "matrix-6c2de212778b": "matrix:9fe660d30f36",
    "prompt-style-9553f048e258": "prompt-style:5e88b6f294c3",
    "gate-d07d5613bd07": "gate:dde77c3019b7",
    # All that were kept so were asked the same texts.
    "prompt-length:a9fac233c4cc": "prompt-length:74f2c63ae1dc",
}


def now(question: str) -> str:
    """A kept question as it would be kept now; the same where that is not known."""
    return FORMER.get(question, question)


def same(one: str, other: str) -> bool | None:
    """Whether both ask the same; none: it is not known, of one of them or of two kinds of hash."""
    one, other = now(one), now(other)
    if not one or not other or (MARK in one) != (MARK in other):
        return None
    return one == other
