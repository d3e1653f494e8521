"""Rotary embeddings as model configurations name them: default, linear, llama3, yarn.

The frequencies are made in f32, in the order of operations the reference libraries use, so that long positions agree.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from proa.config.model_config import ModelConfig, RopeScaling
from proa.ops.interface import Rope

F32 = NDArray[np.float32]


class UnknownRope(ValueError):
    """A kind of scaling that is not built; the message names it."""


def make_rope(config: ModelConfig, factors: F32 | None = None) -> Rope:
    """Return the rope of a configuration.

    Args:
        factors: f32[dim / 2]; divisors of the frequencies that a GGUF file stores as `rope_freqs.weight`, or None.

    Raises:
        UnknownRope: the scaling's kind is not built.
    """
    dim = config.rope_dim
    exponent = np.arange(0, dim, 2, dtype=np.int64).astype(np.float32) / np.float32(dim)
    frequency = (np.float32(1.0) / np.power(np.float32(config.rope_theta), exponent)).astype(np.float32)
    scaling = config.rope_scaling
    if factors is not None:
        frequency = frequency / factors
    if scaling is None:
        return Rope(frequency)
    if scaling.kind == "linear":
        return Rope(frequency / np.float32(scaling.factor))
    if scaling.kind == "llama3":
        return Rope(_llama3(frequency, scaling, config))
    if scaling.kind == "yarn":
        return _yarn(frequency, scaling, config)
    raise UnknownRope(f"rope scaling {scaling.kind!r} is not supported; default, linear, llama3 and yarn are")


def _llama3(frequency: F32, scaling: RopeScaling, config: ModelConfig) -> F32:
    """Long waves are stretched, short ones kept, those between blended (Llama 3.1)."""
    low, high = scaling.low_freq_factor or 1.0, scaling.high_freq_factor or 4.0
    context = scaling.original_context_length or config.context_length
    wavelength = 2 * math.pi / frequency
    smooth = (context / wavelength - low) / (high - low)
    blended = (1 - smooth) * frequency / scaling.factor + smooth * frequency
    stretched = np.where(wavelength > context / low, frequency / scaling.factor, frequency)
    between = (wavelength <= context / low) & (wavelength >= context / high)
    return np.where(between, blended, stretched).astype(np.float32)


def _yarn(frequency: F32, scaling: RopeScaling, config: ModelConfig) -> Rope:
    """Peng et al. 2023, equations 17 to 23: a ramp over dimensions between two numbers of rotations."""
    dim, context = config.rope_dim, scaling.original_context_length or config.context_length

    def dimension_of(rotations: float) -> float:
        return dim * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    first, last = dimension_of(scaling.beta_fast or 32.0), dimension_of(scaling.beta_slow or 1.0)
    if scaling.raw.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    if first == last:
        last += 0.001
    ramp = np.clip((np.arange(dim // 2, dtype=np.float32) - first) / (last - first), 0, 1)
    mixed = frequency / scaling.factor * ramp + frequency * (1 - ramp)
    scale = scaling.attention_factor
    if scale is None:
        scale = _yarn_scale(scaling)
    return Rope(mixed.astype(np.float32), scale)


def _yarn_scale(scaling: RopeScaling) -> float:
    def of(factor: float, weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    single, total = scaling.raw.get("mscale"), scaling.raw.get("mscale_all_dim")
    if single and total:
        return of(scaling.factor, float(single)) / of(scaling.factor, float(total))
    return of(scaling.factor, 1.0)
