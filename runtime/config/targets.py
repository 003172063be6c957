"""What engines are built for: targets, and the shapes that they accept."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from runtime.base.folders import plain_name

Target = Literal["cpu", "cuda", "tensorrt", "tensorrt-rtx"]
# Targets whose engines are TensorRT plans.
PLAN_TARGETS: tuple[Target, ...] = ("tensorrt", "tensorrt-rtx")
# The packed rank of an execute's adapters is a multiple of this, so that few shapes occur.
ADAPTER_RANK_MULTIPLE = 8
# Padded tokens cost little on a GPU, a shape whose graph is not captured yet costs two slow ticks.
CPU_TOKEN_MULTIPLE, GPU_TOKEN_MULTIPLE = 8, 96
# Of an adapter, whose id is the name of its file.
AdapterId = Annotated[str, AfterValidator(plain_name)]
Strength = Annotated[float, Field(ge=-4.0, le=4.0)]


class ShapeRange(BaseModel):
    """min, opt, max of one dimension (TensorRT's optimization profile, one entry)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min: int = Field(ge=1)
    opt: int = Field(ge=1)
    max: int = Field(ge=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.min <= self.opt <= self.max:
            raise ValueError(f"needs min <= opt <= max, got {self.min}, {self.opt}, {self.max}")
        return self

    def holds(self, value: int) -> bool:
        """Whether `value` lies inside."""
        return self.min <= value <= self.max

    def nearest(self, value: int) -> int:
        """The size inside that is nearest to `value`."""
        return min(max(value, self.min), self.max)


class ShapeRanges(BaseModel):
    """Shapes that one engine accepts: rows R, frames T, condition tokens L (1 for a decoder without tokens)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rows: ShapeRange
    frames: ShapeRange
    tokens: ShapeRange = ShapeRange(min=1, opt=1, max=1)

    def holds(self, rows: int, frames: int, tokens: int) -> bool:
        """Whether all three lie inside."""
        return self.rows.holds(rows) and self.frames.holds(frames) and self.tokens.holds(tokens)
