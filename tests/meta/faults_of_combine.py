"""Faults in sums, biases and weights of a combine."""

from dataclasses import replace

import numpy as np

from reference.definition_combine import columns_by_rank, rows_by_choice, sum_rows
from tests.meta.faults import fault, swap


def own_sums(before, call, *, in_rank=True, order=sorted, dropped=(), rounded=False, bias_last=False):
    """Return combined_x per rank, summed with another recipe than the right one."""
    where = rows_by_choice(before.handles)
    sums = []
    for handle in before.handles:
        x = np.zeros((len(handle.topk_idx), call.y[0].shape[1]), call.y[0].dtype)
        for token, choices in enumerate(handle.topk_idx.tolist()):
            groups = columns_by_rank(handle.config, choices)
            terms = {}
            for rank, columns in groups.items():
                rows = {k: call.y[rank][where[handle.rank, token, k, rank]] for k in columns}
                rows = {k: rows[k] for k in order(rows) if k not in dropped}
                if not rows:
                    continue
                if in_rank:
                    terms[columns[-1]] = _total(list(rows.values()), [], rounded)
                else:
                    terms |= rows
            bias = [b[handle.rank][token] for b in call.bias]
            ordered = [terms[k] for k in order(terms)]
            x[token] = _total(ordered + bias, [], False) if bias_last else _total(ordered, bias, False)
        sums.append(x)
    return sums


def _total(rows, bias, rounded):
    hidden = len((rows + bias)[0]) if rows or bias else 0
    if not rounded or len(rows) < 3:
        return sum_rows(rows, bias, hidden, "first_row") if hidden else np.float32(0)
    total = rows[0]
    for row in rows[1:]:
        total = sum_rows([total, row], [], hidden, "first_row")
    return total


def with_sums(results, sums):
    return tuple(replace(r, combined_x=x) for r, x in zip(results, sums, strict=True))


@fault("combined")
def sum_in_descending_order(results, before, call):
    return with_sums(results, own_sums(before, call, order=lambda keys: sorted(keys, reverse=True)))


@fault("combined")
def rounding_per_rank_missing(results, before, call):
    return with_sums(results, own_sums(before, call, in_rank=False))


@fault("combined")
def rounding_after_every_addition(results, before, call):
    return with_sums(results, own_sums(before, call, rounded=True))


@fault("combined")
def bias_added_last(results, before, call):
    return with_sums(results, own_sums(before, call, bias_last=True)) if call.bias else results


@fault("combined")
def column_zero_dropped(results, before, call):
    return with_sums(results, own_sums(before, call, dropped=(0,)))


@fault("combined")
def bias_twice(results, before, call):
    if len(call.bias) != 1:
        return results
    return with_sums(results, own_sums(before, replace(call, bias=call.bias * 2)))


@fault("combined")
def second_bias_forgotten(results, before, call):
    return with_sums(results, own_sums(before, replace(call, bias=call.bias[:1])))


@fault("combined")
def home_tokens_swapped(results, _before, _call):
    for rank, result in enumerate(results):
        if len(result.combined_x) > 1:
            x = result.combined_x.copy()
            swap(x, 0, 1)
            return (*results[:rank], replace(result, combined_x=x), *results[rank + 1 :])
    return results


@fault("combined")
def masked_token_undefined(results, before, call):
    """Rows of tokens without an expert are never written."""
    spoilt = []
    for handle, result in zip(before.handles, results, strict=True):
        x = result.combined_x.copy()
        x[(handle.topk_idx < 0).all(axis=1)] = 7
        spoilt.append(x)
    return with_sums(results, spoilt)


@fault("combined")
def combined_weight_of_the_neighbour(results, _before, _call):
    if results[0].combined_topk_weights is None:
        return results
    turned = [np.roll(r.combined_topk_weights, 1, axis=1) for r in results]
    pairs = zip(results, turned, strict=True)
    return tuple(replace(r, combined_topk_weights=w) for r, w in pairs)


@fault("combined")
def combined_weight_of_a_mask_not_zero(results, before, _call):
    if results[0].combined_topk_weights is None:
        return results
    spoilt = [
        np.where(h.topk_idx < 0, np.float32(1), r.combined_topk_weights)
        for h, r in zip(before.handles, results, strict=True)
    ]
    return tuple(replace(r, combined_topk_weights=w) for r, w in zip(results, spoilt, strict=True))
