"""A whole MoE layer for tests: routings as lists, experts as functions, dispatch and combine between."""

import dataclasses

import numpy as np

from reference.combine import combine
from reference.config import EPConfig
from reference.dispatch import dispatch
from reference.order import RANK_REDUCED
from reference.topk import TopK
from tests.reference.exchange import BF16


def group(ids, *, num_experts, weights=None, capacity=None, hidden=1, **config):
    """Return (config, topk) of a routing given as nested lists per rank."""
    num_topk = next(len(row) for rank in ids for row in rank)
    idx = tuple(np.array(rank, np.int64).reshape(-1, num_topk) for rank in ids)
    if weights is not None:
        weights = tuple(np.array(w, np.float32).reshape(i.shape) for w, i in zip(weights, idx, strict=True))
    made = EPConfig(
        ep_size=len(ids),
        num_experts=num_experts,
        num_topk=num_topk,
        hidden=hidden,
        num_max_tokens_per_rank=capacity or max(1, *(len(i) for i in idx)),
        **config,
    )
    return made, TopK(num_experts=num_experts, topk_idx=idx, topk_weights=weights)


def ones(topk, value=1.0):
    """Return one bf16 column of the same number for every token."""
    return [np.full((n, 1), value, BF16) for n in topk.tokens_per_rank]


def expert_rows(results, handles, topk, expert, *, weighted):
    """Return y: what expert e makes of each expanded row, once times its weight, or not; NaN in padding."""
    y = []
    for result, handle in zip(results, handles, strict=True):
        rows = np.full(result.recv_x.shape, np.nan, BF16)
        gid, k = handle.row_origins()
        for row in np.flatnonzero(gid >= 0):
            src, token = divmod(int(gid[row]), handle.num_max_tokens_per_rank)
            with np.errstate(over="ignore"):
                made = expert(int(topk.topk_idx[src][token, k[row]]), result.recv_x[row].astype(np.float32))
                rows[row] = made * (result.recv_topk_weights[row] if weighted else 1)
        y.append(rows)
    return y


def layer(config, topk, x, expert=lambda e, row: row, *, mode=None, order=RANK_REDUCED):
    """Return combined_x per rank of a whole layer with weighted experts; routings without weights get 1."""
    if topk.topk_weights is None:
        weights = tuple(np.ones(idx.shape, np.float32) for idx in topk.topk_idx)
        topk = dataclasses.replace(topk, topk_weights=weights)
    results, handles = dispatch(config, topk, x, mode=mode)
    y = expert_rows(results, handles, topk, expert, weighted=True)
    return [r.combined_x for r in combine(handles, y, order=order)]
