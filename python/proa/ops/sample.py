"""sample: logits of the rows that need them, the draw, and logprobs.

Contract: (x [L, n], head [vocab, n], inputs, functions) -> `SampleOutputs`. Logits are f32, cut to the reachable ids.
A logit row that holds NaN, or no finite value before masking, or nothing after it, sets `nonfinite`; its other outputs
mean nothing and its neighbours' do not change. Logprobs are of the logits before any processing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from proa.ops.recipe import apply_recipe
from proa.ops.registry import Implementation
from proa.ops.sample_inputs import Logprobs, SampleInputs, SampleOutputs

#: Logit rows of prompt tokens at a time, which bounds the memory they take.
PROMPT_TILE = 128


def sample(x: Tensor, head: Tensor, inputs: SampleInputs, functions: Mapping[str, Callable[..., Any]]) -> SampleOutputs:
    """See the module's contract."""
    drawn, num_sampled = None, inputs.num_sampled
    ids = torch.zeros(0, dtype=torch.int64, device=x.device)
    bad: list[Tensor] = []
    if num_sampled:
        z = _logits(x[:num_sampled], head, inputs, functions)
        ids, row_bad, drawn = _draw(z, inputs, functions)
        bad.append(row_bad)
    parts: list[Logprobs] = []
    for start in range(0, len(inputs.prompt_k), PROMPT_TILE):
        tile = slice(start, min(start + PROMPT_TILE, len(inputs.prompt_k)))
        z = _logits(x[num_sampled + tile.start : num_sampled + tile.stop], head, inputs, functions)
        bad.append(_is_bad(z))
        parts.append(functions["logprobs"](z, inputs.prompt_target[tile], inputs.prompt_k[tile]))
    flags = torch.cat(bad) if bad else torch.zeros(0, dtype=torch.bool, device=x.device)
    return SampleOutputs(ids.to(torch.int32), flags.to(torch.uint8), drawn, _join(parts))


def _logits(x: Tensor, head: Tensor, inputs: SampleInputs, functions: Mapping[str, Callable[..., Any]]) -> Tensor:
    z: Tensor = functions["logits"](x, head)
    return z[:, : inputs.num_reachable]


def _is_bad(z: Tensor) -> Tensor:
    """bool[N]: NaN among the logits, or none of them finite."""
    return z.amax(-1).isnan() | ~z.isfinite().any(-1)


def _draw(
    z: Tensor, inputs: SampleInputs, functions: Mapping[str, Callable[..., Any]]
) -> tuple[Tensor, Tensor, Logprobs | None]:
    bad = _is_bad(z)
    wants_logprobs = inputs.num_logprobs is not None
    if inputs.edits or inputs.penalties is not None:
        raw = z.clone() if wants_logprobs else z
        apply_recipe(z, inputs)
        bad = bad | (z.amax(-1) == -torch.inf)
    else:
        raw = z
    ids = z.argmax(-1)  # the first of equal ones
    if inputs.draws is not None:
        index = inputs.draws.index
        # A bad row draws from zeros, so that no filter meets NaN.
        rows = z[index].masked_fill(bad[index, None], 0.0)
        ids[index] = functions["draw"](rows, inputs.draws)
    logprobs = functions["logprobs"](raw, ids, inputs.num_logprobs) if wants_logprobs else None
    return ids, bad, logprobs


def _join(parts: list[Logprobs]) -> Logprobs | None:
    """Tiles one after another; narrower ones are filled as rows with a smaller k are."""
    if not parts:
        return None
    width = max(part.top_ids.shape[1] for part in parts)

    def joined(name: str, fill: float) -> Tensor:
        tiles = [getattr(part, name) for part in parts]
        return torch.cat([torch.nn.functional.pad(t, (0, width - t.shape[1]), value=fill) for t in tiles])

    return Logprobs(
        torch.cat([part.value for part in parts]),
        torch.cat([part.rank for part in parts]),
        joined("top_ids", -1),
        joined("top_values", -torch.inf),
    )


IMPLEMENTATIONS = (Implementation("torch", sample, "the recipe in torch, rows without a wish cost nothing"),)
