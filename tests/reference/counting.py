"""Slow plain loops over a routing, and the checks that hold for any counts.

The loops share no code with `reference.plan`; tests/meta shows that the checks reject planted faults.
"""

import numpy as np


def slow_ledger(config, topk):
    """Return rows (src, token, k, dst, expert, hits, is_master) by plain loops."""
    where = config.expert_ranks().tolist()
    rows = []
    for src, idx in enumerate(topk.topk_idx):
        for token, experts in enumerate(idx.tolist()):
            for k, expert in enumerate(experts):
                if expert < 0:
                    continue
                same = [j for j, other in enumerate(experts) if other >= 0 and where[other] == where[expert]]
                rows.append((src, token, k, where[expert], expert, len(same), k == max(same)))
    return rows


def slow_pairs(config, topk):
    """Return the set of distinct (src, token, dst) with a valid expert."""
    where = config.expert_ranks().tolist()
    return {
        (src, token, where[expert])
        for src, idx in enumerate(topk.topk_idx)
        for token, experts in enumerate(idx.tolist())
        for expert in experts
        if expert >= 0
    }


def check_ledger(config, topk, rows):
    """Assert that ledger rows say exactly what the routing says, in any order."""
    assert sorted(rows) == slow_ledger(config, topk)


def check_counts(config, topk, counts):
    """Assert that counts conserve rows and agree with the distinct pairs of the routing."""
    pairs = slow_pairs(config, topk)
    size = config.ep_size
    by_pair = np.zeros((size, size), dtype=np.int64)
    for src, _, dst in pairs:
        by_pair[src, dst] += 1
    np.testing.assert_array_equal(counts.rows, by_pair, err_msg="rows differ from the distinct pairs")
    assert counts.sent_rows.sum() == counts.received_rows.sum() == len(pairs)
    valid = [e for idx in topk.topk_idx for e in idx.ravel().tolist() if e >= 0]
    by_expert = np.bincount(valid, minlength=config.num_experts)
    np.testing.assert_array_equal(counts.expert_rows, by_expert, err_msg="expert_rows differ")
    owned = [int(by_expert[config.expert_ranks() == r].sum()) for r in range(size)]
    assert counts.expanded_rows.tolist() == owned, "expanded_rows differ"
    ledger = slow_ledger(config, topk)
    for rank in range(size):
        here = [row for row in ledger if row[3] == rank]
        single = sum(row[5] == 1 for row in here)
        assert counts.single_hit_rows[rank] == single, f"single-hit rows of rank {rank}"
        assert counts.multi_hit_rows[rank] == sum(row[6] and row[5] > 1 for row in here), f"rank {rank}"
        assert counts.multi_hit_expert_rows[rank] == sum(row[5] > 1 for row in here), f"rank {rank}"
    assert counts.num_tokens.tolist() == list(topk.tokens_per_rank), "num_tokens differ"
