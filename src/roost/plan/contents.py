"""What a checkpoint holds, by its tensors: the config declares, the index is the fact."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from roost.settings import Count, Strict

Amount = Annotated[int, Field(ge=0)]


class Part(Strict):
    """Tensors that belong together."""

    tensors: Amount
    bytes: Amount | None = Field(None, description="in the shards; none: only the index was read")


class Contents(Strict):
    """The tensors of one checkpoint, as its index and shard headers list them.

    Every tensor counts in exactly one part.
    """

    language: Part = Field(description="layers of the text model, with their norms and routers")
    embedding: Part = Field(
        Part(tensors=0), description="token embedding and output head, which a drafter may share"
    )
    vision: Part = Field(Part(tensors=0), description="vision tower and its projector")
    mtp: Part = Field(Part(tensors=0), description="the model's own drafter head")

    @property
    def tensors(self) -> int:
        """Of all parts."""
        return sum(part.tensors for part in self._parts)

    @property
    def bytes(self) -> Count | None:
        """Of all parts; none where one of them is not known."""
        sizes = [part.bytes for part in self._parts if part.tensors]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    @property
    def _parts(self) -> tuple[Part, ...]:
        return (self.language, self.embedding, self.vision, self.mtp)
