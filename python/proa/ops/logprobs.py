"""logprobs: log-softmax, rank and top k of given ids.

Contract: (z f32[N, vocab], ids i64[N], wanted i32[N] on the host) -> value, rank, top_ids, top_values as in
`LogprobColumns`: natural logs from the logits as they are, rank = entries >= the id's (0 when its value is NaN), the
top k by falling value and then lower id, NO_TOKEN and -inf behind a row's own k.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proa.ops.ordering import top_ids
from proa.ops.registry import Implementation
from proa.ops.sample_inputs import Logprobs
from proa.sched.plan import LOGPROBS_VOCABULARY, NO_TOKEN


def reference(z: Tensor, ids: Tensor, wanted: NDArray[np.int32]) -> Logprobs:
    """See the module's contract."""
    vocab = z.shape[-1]
    ks = np.where(wanted == LOGPROBS_VOCABULARY, vocab, np.clip(wanted, 0, vocab))
    width = int(ks.max(initial=0))
    total = z.logsumexp(-1, keepdim=True)
    chosen = z.gather(-1, ids[:, None])
    value = (chosen - total).squeeze(-1)
    rank = (z >= chosen).sum(-1).masked_fill(value.isnan(), 0)
    top = top_ids(z, width)
    values = z.gather(-1, top) - total
    behind = torch.from_numpy(np.arange(width) >= ks[:, None]).to(z.device, non_blocking=True)
    return Logprobs(
        value,
        rank.to(torch.int32),
        top.masked_fill(behind, NO_TOKEN).to(torch.int32),
        values.masked_fill(behind, -torch.inf),
    )


IMPLEMENTATIONS = (Implementation("torch", reference, "keys of value and id, one top-k"),)
