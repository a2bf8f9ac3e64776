"""Shared pieces of the predictor's tests: small groups, loads without NumPy tricks, and bounds."""

import math

import numpy as np

from epsim.model.closedform import OperationBytes, evaluate
from epsim.model.loads import rank_loads
from epsim.platform.network import Network
from epsim.platform.profile import hardware_profile, override, software_profile
from reference.config import EPConfig
from reference.plan import count_rows
from reference.topk import TopK

HARDWARE = hardware_profile("950dt")
SOFTWARE = software_profile("deepep-ascend-2026-09-poc")
ROW = OperationBytes(logical=7464, wire=7488, payload=7168)
EPS = float(np.finfo(np.float64).eps)


def network(**changes):
    """One scale-up domain of 128 cards and a scale-out port, without a graph."""
    standard = {
        "name": "test",
        "num_npus": None,
        "scaleup_bytes_per_s": 400e9,
        "scaleup_domain": 128,
        "is_mesh": False,
        "scaleout_bytes_per_s": 50e9,
        "latency_s": 0.0,
    }
    return Network(**{**standard, **changes})


def group(ep_size, num_experts=256, num_topk=6, tokens=16_384):
    """Return a group of the published benchmark's shape."""
    return EPConfig(
        ep_size=ep_size,
        num_experts=num_experts,
        num_topk=num_topk,
        hidden=7168,
        num_max_tokens_per_rank=tokens,
    )


def terms_of(loads, operation="dispatch", net=None, settings=None):
    """Evaluate the closed form with the standard profiles and some changed parameters."""
    hardware, software = override(HARDWARE, SOFTWARE, settings or {})
    return evaluate(operation, loads, ROW, net or network(), hardware, software)


def loads_of(config, topk, pod_size=None, **options):
    """Count a routing and read its loads."""
    return rank_loads(count_rows(config, topk, pod_size=pod_size), **options)


def topk_of(ranks, num_experts):
    """Make a routing from nested lists: rank, token, choices."""
    width = max(len(row) for rows in ranks for row in rows)
    idx = tuple(np.array(rows, dtype=np.int64).reshape(len(rows), width) for rows in ranks)
    return TopK(num_experts=num_experts, topk_idx=idx)


def relabelled(topk, order, experts_per_rank):
    """Give rank order[i] the name i: its tokens and its experts move along."""
    new_name = np.argsort(order)
    experts = np.arange(topk.num_experts)
    new_expert = new_name[experts // experts_per_rank] * experts_per_rank + experts % experts_per_rank
    lookup = np.append(new_expert, -1)  # a masked choice stays masked
    return TopK(num_experts=topk.num_experts, topk_idx=tuple(lookup[topk.topk_idx[old]] for old in order))


def rounding(count, scale):
    """Return what `count` additions and products may lose on a sum of positive numbers of size `scale`."""
    return count * EPS * scale


def sigmas_of(false_alarm):
    """Return z such that a normal value leaves +-z with this probability."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(1 - false_alarm / 2)


def is_sum(total, parts):
    """Whether parts add up to total but for rounding; a negative or missing part is no rounding."""
    parts = list(parts)
    return abs(math.fsum(parts) - total) <= rounding(2 * len(parts) + 2, math.fsum(map(abs, parts)))
