"""The sampling recipe before the draw, in the order of http-surface.md 2.2: allowed ids, bad words, min_tokens, bias,
penalties. Works in place on logits f32[S, reachable vocabulary].
"""

from __future__ import annotations

import torch
from torch import Tensor

from proa.ops.sample_inputs import ANY, BadWords, Penalties, RowEdits, SampleInputs


def apply_recipe(z: Tensor, inputs: SampleInputs) -> None:
    """Mask, bias and penalise the sampled rows as their requests ask."""
    for edits in inputs.edits:
        _edit(z[edits.index], edits)
    if inputs.penalties is not None:
        _penalise(z, inputs.penalties)


def _edit(row: Tensor, edits: RowEdits) -> None:
    if edits.allowed is not None:
        kept = row[edits.allowed]
        row.fill_(-torch.inf)
        row[edits.allowed] = kept
    if edits.bad_words is not None:
        _mask_bad_words(row, edits.bad_words)
    if edits.masked is not None:
        row.index_fill_(0, edits.masked, -torch.inf)
    if edits.bias_ids is not None and edits.bias_values is not None:
        row.index_add_(0, edits.bias_ids, edits.bias_values)


def _mask_bad_words(row: Tensor, words: BadWords) -> None:
    """Two words may end in one token, so the masks are joined by a minimum."""
    completes = ((words.prefix == words.tail) | (words.prefix == ANY)).all(-1)
    ceiling = torch.where(completes, -torch.inf, torch.inf).to(row.dtype)
    row.scatter_reduce_(0, words.last, ceiling, "amin")


def _penalise(z: Tensor, penalties: Penalties) -> None:
    """Repetition as Keskar et al. 2019; then presence and frequency, which count output tokens only."""
    rows = z[penalties.index]
    in_output = penalties.counts > 0
    divided = torch.where(rows > 0, rows / penalties.repetition, rows * penalties.repetition)
    rows = torch.where(penalties.in_prompt | in_output, divided, rows)
    rows = rows - (penalties.presence * in_output + penalties.frequency * penalties.counts)
    z[penalties.index] = rows
