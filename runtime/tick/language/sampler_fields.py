"""The tensors of the sampler graph, declared once: logits of the planner's rows -> one token per sequence and logit.

Letters: R rows, G logits per row, V vocabulary, N sequences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class SamplerTensor(NamedTuple):
    """Shape letters and dtype."""

    letters: str
    dtype: str = "float32"


# positive_row, negative_row: the sequence's rows, the same row twice without guidance. row_sequence: a row's sequence.
# top_k: 0 for no limit, 1 for the likeliest token. uniform: in [0, 1). allowed: the tokens that may come.
SAMPLER_INPUTS: Mapping[str, SamplerTensor] = {
    "logits": SamplerTensor("RGV"),
    "positive_row": SamplerTensor("N", "int64"),
    "negative_row": SamplerTensor("N", "int64"),
    "row_sequence": SamplerTensor("R", "int64"),
    "guidance": SamplerTensor("N"),
    "temperature": SamplerTensor("N"),
    "top_k": SamplerTensor("N", "int64"),
    "top_p": SamplerTensor("N"),
    "uniform": SamplerTensor("NG"),
    "allowed": SamplerTensor("NGV", "bool"),
}
# row_tokens: a row's tokens are its sequence's. finite: False where a logit of the sequence is not a number.
SAMPLER_OUTPUTS: Mapping[str, SamplerTensor] = {
    "tokens": SamplerTensor("NG", "int64"),
    "row_tokens": SamplerTensor("RG", "int64"),
    "finite": SamplerTensor("N", "bool"),
}
