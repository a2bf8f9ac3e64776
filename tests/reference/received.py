"""Made-up received streams with keys, for tests of comparison: rows, scales, weights, prefix sums."""

import numpy as np

from reference.comparison.compare import UNDEFINED_ROW, RowKeys, RowStream
from reference.formats.dtypes import BF16, cast

ROW_FIELDS = ("recv_x", "recv_x_scales", "recv_topk_weights")


def rank_case(rng, *, ep_size=3, num_local_experts=3, hidden=8, packs=3, most=4, num_undefined=2):
    """Return (fields, keys) of one rank; rows by (expert, source rank, token), some undefined ones last.

    At least two tokens of source rank 0 reach expert 0, so that there is always a pair to exchange.
    """
    found = []
    for expert in range(num_local_experts):
        for src in range(ep_size):
            count = int(rng.integers(2 if expert == src == 0 else 0, most + 1))
            found += [(src, token, expert) for token in sorted(rng.permutation(9)[:count].tolist())]
    counts = np.bincount([row[2] for row in found], minlength=num_local_experts)
    found += [(UNDEFINED_ROW, 0, 0)] * num_undefined
    src, token, expert = np.array(found, np.int64).T
    fields = {
        "recv_x": cast(rng.standard_normal((len(found), hidden), dtype=np.float32), BF16),
        "recv_x_scales": rng.random((len(found), packs), dtype=np.float32),
        "recv_topk_weights": rng.random(len(found), dtype=np.float32),
        "psum_num_recv_tokens_per_expert": np.cumsum(counts).astype(np.int32),
        "rows": [len(found), num_undefined],
    }
    return fields, RowKeys(src_rank=src, src_token=token, expert=expert)


def make_case(seed=0, *, num_ranks=3, **shape):
    """Return (fields per rank, keys per rank)."""
    rng = np.random.default_rng(seed)
    ranks = [rank_case(rng, **shape) for _ in range(num_ranks)]
    return [fields for fields, _ in ranks], [keys for _, keys in ranks]


def take_rows(fields, keys, rows):
    """Return fields and keys with the rows at these places; copies, so that a fault harms nothing else."""
    moved = {name: array[rows] if name in ROW_FIELDS else np.array(array) for name, array in fields.items()}
    expert = None if keys.expert is None else keys.expert[rows]
    return moved, RowKeys(src_rank=keys.src_rank[rows], src_token=keys.src_token[rows], expert=expert)


def shuffled(fields, keys, rng):
    """Shuffle as the contract allows: tokens of one source rank in one expert; undefined rows change."""
    blocks = keys.expert * 1000 + keys.src_rank
    blocks[keys.src_rank == UNDEFINED_ROW] = 10**6
    rows = np.lexsort((rng.random(keys.num_rows), blocks))
    moved, moved_keys = take_rows(fields, keys, rows)
    undefined = moved_keys.src_rank == UNDEFINED_ROW
    for name in ROW_FIELDS:
        moved[name][undefined] = np.float32(np.nan)
    return moved, moved_keys


def stream_of(expected_keys, actual_keys, order="source"):
    return RowStream(
        fields=ROW_FIELDS, expected=expected_keys, actual=actual_keys, order=order, name="received"
    )
