"""Stand-in for the library that applies chat templates: a stand-in engine has no tokenizer.

It is the module ``transformers`` of the image ``roost-lab/engine-standin``, as far as a benchmark
asks for it.
"""

from __future__ import annotations

from typing import Any


class AutoTokenizer:
    """A word counts as a token, and a prompt is what was said."""

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> AutoTokenizer:
        """The only one there is."""
        return cls()

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        """The last message."""
        return messages[-1]["content"]

    def encode(self, text: str, **_: Any) -> list[str]:
        """Its words."""
        return text.split()
