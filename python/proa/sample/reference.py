"""The sampling recipe of one row in numpy, in the order of http-surface.md 2.2: the reference for every device.

Allowed ids, bad words, min_tokens, bias, penalties, temperature, min_p, top_k, top_p, draw. The grammar's mask would
come first; there are no grammars yet.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from proa.sample.philox import gumbel_noise

F32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What one draw depends on beside the logits; fields as in `RowUpdates` and `RowExtras`.

    Attributes:
        prompt, output: the row's ids so far.
        position: index of the token to be drawn among the output tokens.
    """

    position: int = 0
    stream_key: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    stop_ids: tuple[int, ...] = ()
    bias: tuple[tuple[int, float], ...] = ()
    allowed_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()


def processed(logits: F32, recipe: Recipe) -> F32:
    """Return a row's logits after masks, bias and penalties, f32[vocab]."""
    z = logits.copy()
    if recipe.allowed_ids is not None:
        z = np.full_like(logits, -np.inf)
        z[list(recipe.allowed_ids)] = logits[list(recipe.allowed_ids)]
    history = recipe.prompt + recipe.output
    for word in recipe.bad_words:
        if len(word) == 1 or history[-(len(word) - 1) :] == word[:-1]:
            z[word[-1]] = -np.inf
    if recipe.position < recipe.min_tokens:
        z[list(recipe.stop_ids)] = -np.inf
    for token, value in recipe.bias:
        z[token] += np.float32(value)
    for token in sorted(set(history)):
        repetition = np.float32(recipe.repetition_penalty)
        z[token] = z[token] / repetition if z[token] > 0 else z[token] * repetition
    for token in sorted(set(recipe.output)):
        count = recipe.output.count(token)
        z[token] -= np.float32(recipe.presence_penalty) + np.float32(recipe.frequency_penalty) * np.float32(count)
    return z


def candidates(z: F32, recipe: Recipe) -> tuple[NDArray[np.int64], F32]:
    """Return the ids that can be drawn from processed logits, best first, with their scaled logits."""
    z = z / np.float32(recipe.temperature)
    order = np.lexsort((np.arange(len(z)), -z))
    order = order[z[order] > -np.inf]
    if recipe.min_p > 0:
        order = order[z[order] >= z.max() + np.log(np.float32(recipe.min_p))]
    if recipe.top_k > 0:
        order = order[: recipe.top_k]
    mass = np.exp((z[order] - z.max()).astype(np.float64))
    before = np.cumsum(mass) - mass
    if recipe.top_p < 1:
        keep = before < recipe.top_p * mass.sum()
        keep[0] = True
        order = order[keep]
    return order, z[order]


def draw(logits: F32, recipe: Recipe) -> int:
    """Return the drawn id of finite logits f32[vocab] that the masks leave something of."""
    z = processed(logits, recipe)
    if recipe.temperature == 0:
        return int(np.argmax(z))
    ids, values = candidates(z, recipe)
    noisy = values + gumbel_noise(recipe.stream_key, recipe.position, ids)
    return int(ids[noisy == noisy.max()].min())
