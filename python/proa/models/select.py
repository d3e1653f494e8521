"""Which family runs a model, by the architecture its files name, and what a family cannot do."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from proa.config.model_config import ModelConfig
from proa.executor.interface import StartFailed
from proa.layers.rotary import UnknownRope
from proa.models.llama import Llama
from proa.ops.interface import Model

#: Architecture -> family.
FAMILIES = {"llama": Llama}


def make_model(
    config: ModelConfig, has_bias: Iterable[str] = (), rope_factors: NDArray[np.float32] | None = None
) -> Model:
    """Return the model of a configuration, without weights.

    Args:
        config: its shape.
        has_bias: modules whose bias the files hold.
        rope_factors: divisors of the rope's frequencies stored in the file, or None.

    Raises:
        StartFailed: start_config, naming what is not supported.
    """
    family = FAMILIES.get(config.architecture)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise StartFailed("start_config", f"architecture {config.architecture!r} is not supported; {known} is")
    if config.hidden_act != "silu":
        raise StartFailed("start_config", f"activation {config.hidden_act!r} is not supported; silu is")
    if config.sliding_window is not None:
        raise StartFailed("start_config", f"a sliding window ({config.sliding_window} tokens) is not supported")
    _check_shape(config)
    try:
        return family(config, frozenset(has_bias), rope_factors)
    except UnknownRope as error:
        raise StartFailed("start_config", str(error)) from error


def _check_shape(config: ModelConfig) -> None:
    if config.num_heads % config.num_kv_heads:
        raise StartFailed(
            "start_config", f"{config.num_heads} heads do not divide into {config.num_kv_heads} of K and V"
        )
    if config.rope_dim % 2 or not 0 < config.rope_dim <= config.head_dim:
        raise StartFailed("start_config", f"a rope of {config.rope_dim} dimensions in heads of {config.head_dim}")
