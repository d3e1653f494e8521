"""attention: causal attention of new tokens over the paged cache.

Contract: (q [T, H * D], cache, layer, step) -> [T, H * D] in q's dtype. Query head h reads K and V head h // (H / Hkv);
a token at position p sees positions 0 .. p of its own row, its own included, from the cache. The softmax is in f32.
A slot that is not in a row's context is never read for it, so what other rows' slots hold (NaN too) cannot reach it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from proa.ops.interface import AttentionLayer
from proa.ops.registry import Implementation
from proa.ops.step import DecodeGroup, LayerCache, PrefillRow, Step

#: Queries of a prompt chunk at a time: bounds the mask, and lets early queries pass over the later context.
QUERY_TILE = 512


def reference(q: Tensor, cache: LayerCache, layer: AttentionLayer, step: Step) -> Tensor:
    """Row by row, in the words of the formula."""
    out = torch.empty_like(q)
    for row in step.prefill_rows:
        positions = torch.arange(row.context - (row.end - row.start), row.context, device=q.device)
        out[row.start : row.end] = _reference_row(q[row.start : row.end], row.slots, positions, (cache, layer))
    for group in step.decode_groups:
        for i, token in enumerate(group.tokens.tolist()):
            inside = (
                group.mask[i, 0, 0] if group.mask is not None else torch.ones_like(group.slots[i], dtype=torch.bool)
            )
            slots = group.slots[i][inside]
            positions = torch.tensor([len(slots) - 1], device=q.device)
            out[token] = _reference_row(q[token : token + 1], slots, positions, (cache, layer))[0]
    return out


def _reference_row(q: Tensor, slots: Tensor, positions: Tensor, of: tuple[LayerCache, AttentionLayer]) -> Tensor:
    cache, layer = of
    group = layer.num_heads // layer.num_kv_heads
    heads = q.to(torch.float32).view(len(q), layer.num_heads, layer.head_dim)
    shape = (len(slots), layer.num_kv_heads, layer.head_dim)
    k = cache.k[slots].to(torch.float32).view(shape).repeat_interleave(group, 1)
    v = cache.v[slots].to(torch.float32).view(shape).repeat_interleave(group, 1)
    scores = torch.einsum("qhd,lhd->hql", heads, k) * layer.scale
    hidden = torch.arange(len(slots), device=q.device) > positions[:, None]
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hql,lhd->qhd", weights, v).reshape(q.shape).to(q.dtype)


def gathered(q: Tensor, cache: LayerCache, layer: AttentionLayer, step: Step) -> Tensor:
    """Gathers each context and calls torch's attention: a prompt chunk alone, decoding rows of like length together.

    The query heads that share a head of K and V stand as further queries of it, so nothing is repeated.
    """
    out = torch.empty_like(q)
    for row in step.prefill_rows:
        out[row.start : row.end] = _prefill(q[row.start : row.end], row, (cache, layer), step)
    for group in step.decode_groups:
        out[group.tokens] = _decode(q[group.tokens], group, cache, layer)
    return out


def _gather(cache: Tensor, slots: Tensor, layer: AttentionLayer, dtype: torch.dtype) -> Tensor:
    """[B, Hkv, context, D] of i64[B, context]."""
    rows = cache.index_select(0, slots.reshape(-1)).to(dtype)
    return rows.view(*slots.shape, layer.num_kv_heads, layer.head_dim).transpose(1, 2)


def _prefill(q: Tensor, row: PrefillRow, of: tuple[LayerCache, AttentionLayer], step: Step) -> Tensor:
    cache, layer = of
    slots = row.slots.unsqueeze(0)
    k, v = (_gather(side, slots, layer, q.dtype) for side in (cache.k, cache.v))
    group = layer.num_heads // layer.num_kv_heads
    tiles = []
    for first in range(0, len(q), QUERY_TILE):
        tile = q[first : first + QUERY_TILE]
        count, context = len(tile), row.context - len(q) + first + len(tile)
        key = ("causal", row.start + first, group)
        if key not in step.tables:
            ramp = torch.arange(context, device=q.device)
            step.tables[key] = ((ramp <= ramp[-count:, None]).repeat(group, 1),)
        found = functional.scaled_dot_product_attention(
            tile.view(count, layer.num_kv_heads, group, layer.head_dim).permute(1, 2, 0, 3).flatten(1, 2)[None],
            k[:, :, :context],
            v[:, :, :context],
            attn_mask=step.tables[key][0],
            scale=layer.scale,
        )
        found = found.view(layer.num_kv_heads, group, count, layer.head_dim)
        tiles.append(found.permute(2, 0, 1, 3).reshape(count, -1))
    return torch.cat(tiles)


def _decode(q: Tensor, group: DecodeGroup, cache: LayerCache, layer: AttentionLayer) -> Tensor:
    found = functional.scaled_dot_product_attention(
        q.view(len(q), layer.num_kv_heads, -1, layer.head_dim),
        _gather(cache.k, group.slots, layer, q.dtype),
        _gather(cache.v, group.slots, layer, q.dtype),
        attn_mask=group.mask,
        scale=layer.scale,
    )
    return found.reshape(q.shape)


IMPLEMENTATIONS = (
    Implementation("gathered", gathered, "contexts are gathered, torch attends"),
    Implementation("reference", reference, "plain torch, row by row"),
)
