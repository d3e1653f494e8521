"""draw: temperature, min_p, top_k, top_p and the Gumbel-max draw of rows with a temperature.

Contract: (z f32[D, vocab] after the recipe, draws) -> ids i64[D]. Logits are divided by the temperature; min_p drops
ids below min_p times the largest probability; top_k keeps the best k; top_p the smallest set of the rest whose mass
reaches it, at least one; then the id with the largest logit + noise is drawn, ties to the lowest id. The noise of an id
depends on the row's key and position alone (gumbel.py), so it need be computed only for ids that can win.
"""

from __future__ import annotations

import torch
from torch import Tensor

from proa.ops.gumbel import LARGEST_NOISE, gumbel_noise
from proa.ops.ordering import top_ids
from proa.ops.registry import Facts, Implementation
from proa.ops.sample_inputs import Draws

#: Best ids looked at first; nearly every filter and every draw ends among them.
_FIRST_LOOK = 1024


def reference(z: Tensor, draws: Draws) -> Tensor:
    """Every id of every row; asks the device nothing."""
    z = _scaled(z, draws)
    if not _is_filtered(draws):
        every = torch.arange(z.shape[-1], device=z.device).expand_as(z)
        return _winner(z, every, _noise(every, draws, slice(None)))
    most = int(draws.host_top_k.max()) if (draws.host_top_k > 0).all() else z.shape[-1]
    return _draw_sorted(z, draws, slice(None), min(most, z.shape[-1]))


def candidates(z: Tensor, draws: Draws) -> Tensor:
    """Row by row, only ids that can still win."""
    z = _scaled(z, draws)
    ids = torch.empty(len(z), dtype=torch.int64, device=z.device)
    for i in range(len(z)):
        row = slice(i, i + 1)
        if draws.host_top_k[i] > 0 or draws.host_top_p[i] < 1:
            ids[i] = _draw_sorted(z[row], draws, row, _num_kept(z[row], draws, i))[0]
        else:
            ids[i] = _draw_any(z[row], draws, row)
    return ids


def _is_filtered(draws: Draws) -> bool:
    return bool((draws.host_top_k > 0).any() or (draws.host_top_p < 1).any())


def _scaled(z: Tensor, draws: Draws) -> Tensor:
    """Divided by the temperature, min_p applied."""
    z = z / draws.temperature
    if not (draws.host_min_p > 0).any():
        return z
    return z.masked_fill(z < z.amax(-1, keepdim=True) + draws.min_p.log(), -torch.inf)


def _noise(ids: Tensor, draws: Draws, rows: slice) -> Tensor:
    return gumbel_noise(draws.key_low[rows], draws.key_high[rows], ids, draws.position[rows])


def _winner(z: Tensor, ids: Tensor, noise: Tensor) -> Tensor:
    noisy = z + noise
    best = noisy.amax(-1, keepdim=True)
    return ids.masked_fill(noisy < best, torch.iinfo(torch.int64).max).amin(-1)


def _num_kept(z: Tensor, draws: Draws, i: int) -> int:
    """How many of the best ids surely hold all that the filters of row i keep."""
    vocab = z.shape[-1]
    first = min(_FIRST_LOOK, vocab)
    if 0 < draws.host_top_k[i] <= first:
        return int(draws.host_top_k[i])
    mass = (z - z.amax()).double().exp()
    if float(mass.topk(first).values.sum()) >= float(draws.host_top_p[i]) * float(mass.sum()):
        return first
    return min(int(draws.host_top_k[i]) or vocab, vocab)


def _draw_sorted(z: Tensor, draws: Draws, rows: slice, num_best: int) -> Tensor:
    """Draw from the `num_best` best ids of each row, which hold all that top_k and top_p keep."""
    ids = top_ids(z, num_best)
    best = z.gather(-1, ids)
    rank = torch.arange(num_best, device=z.device)
    best = best.masked_fill(rank >= draws.top_k[rows], -torch.inf)
    largest = best[:, :1]
    mass = (best - largest).double().exp()
    # A row without top_k counts the mass of ids that are not among the best too.
    everything = (z - largest).double().exp().sum(-1, keepdim=True)
    total = torch.where(draws.top_k[rows] < z.shape[-1], mass.sum(-1, keepdim=True), everything)
    mass_before = mass.cumsum(-1) - mass
    best = best.masked_fill((mass_before >= draws.top_p[rows] * total) & (rank > 0), -torch.inf)
    return _winner(best, ids, _noise(ids, draws, rows))


def _draw_any(z: Tensor, draws: Draws, row: slice) -> Tensor:
    """A draw without filters: after a first look, only ids that the largest noise could lift above the best so far."""
    first = z.topk(min(_FIRST_LOOK, z.shape[-1]), -1)
    so_far = float((first.values + _noise(first.indices, draws, row)).amax())
    ids = (z[0] >= so_far - LARGEST_NOISE).nonzero().squeeze(-1)[None]
    return _winner(z.gather(-1, ids), ids, _noise(ids, draws, row))[0]


def _needs_cpu(facts: Facts) -> str | None:
    return None if facts.device == "cpu" else f"device is {facts.device}, where a look at a value waits for the stream"


IMPLEMENTATIONS = (
    Implementation("candidates", candidates, "noise only for ids that can win", _needs_cpu),
    Implementation("reference", reference, "noise for every id, no wait for the stream"),
)
