"""`epsim.predict`: from names and numbers to predictions of dispatch and combine."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mode
from typing import get_args

import numpy as np

from epsim.assess import assumptions, validity
from epsim.closedform import OPERATIONS, Operation, OperationBytes, Terms, evaluate, payload_rate
from epsim.counting import Counted, Draws, count_routing
from epsim.errors import InputError
from epsim.loads import RankLoads, rank_loads
from epsim.network import Network, busiest_link_s
from epsim.options import TokenCounts, TwoLayer
from epsim.prediction import Prediction, Predictions, classify
from epsim.presets import model_shape
from epsim.profile import Hardware, Software
from epsim.setup import Setup, make_setup
from reference.config import EPConfig, ExpertMap
from reference.generate import stepped_token_counts
from reference.limits import Limit, limits
from reference.sizes import Dtype, RowBytes, ascend_buffer_bytes, element_bytes, row_bytes
from reference.topk import TopK
from topology import Topology


def predict(
    system: str | Topology = "ubl128",
    *,
    model: str = "benchmark",
    ep: int | Sequence[int] = (8, 16, 32, 64, 128),
    tokens: int | Sequence[int] = 16_384,
    token_counts: TokenCounts = "equal",
    operations: Sequence[Operation] = ("dispatch", "combine"),
    dtype: Dtype = "fp8",
    hidden: int | None = None,
    num_experts: int | None = None,
    num_topk: int | None = None,
    expert_alignment: int = 128,
    expert_map: ExpertMap | None = None,
    routing: str | Path | TopK = "uniform",
    seed: int = 0,
    draws: Draws = None,
    masked_ratio: float = 0.0,
    ranks_per_supernode: int | None = None,
    two_layer: TwoLayer = "dedup",
    hardware: str | Hardware | None = None,
    software: str | Software | None = None,
    settings: Mapping[str, str | float] | None = None,
    num_buffer_bytes: int | None = None,
) -> Predictions:
    """Predict dispatch and combine.

    Args:
      system: preset ("ubl128", "clos:1024"), cluster file (.toml), HCCL file (.json), or a Topology.
      model: shape of the layer; `hidden`, `num_experts` and `num_topk` replace single numbers.
      ep: group sizes.
      tokens: tokens per rank, one for all or one per rank (then one group size).
      token_counts: "equal", or "stepped": rank r sends tokens - r, as the published tests do.
      operations: of "dispatch", "cached-dispatch", "combine".
      dtype: of dispatch, "fp8" or "bf16"; combine is always bf16.
      hidden: elements of a token.
      num_experts: physical experts of the whole group.
      num_topk: experts that a token chooses.
      expert_alignment: rows that an expert's block is padded to.
      expert_map: placement with redundant experts.
      routing: "uniform", "zipf:1.1", ... (see `reference.generate.parse_routing`), a routing file or
        folder, a per-expert load histogram, or a TopK.
      seed: of the sampled routing.
      draws: sampled routings to average; None = exact expectation for uniform routing and one draw
        otherwise; "auto" = as many as make about two million tokens.
      masked_ratio: chance that a choice is masked.
      ranks_per_supernode: ranks of the group in one scale-up domain; None = as many as fit.
      two_layer: "dedup" sends a token once per supernode, "flat" once per rank as upstream does.
      hardware: profile name, file or object; None = the system's.
      software: profile name, file or object; None = the system's.
      settings: single parameters that replace the profiles', e.g. {"hbm_rate": "3.2TB/s"}.
      num_buffer_bytes: size of an existing buffer to check.

    Returns:
      Predictions, by group size and then operation.

    Raises:
      InputError: an argument breaks a rule (field, value, rule).
      ConfigError: group or routing breaks a rule.
      TopologyError: a topology breaks a rule.
    """
    setup = make_setup(system, hardware=hardware, software=software, settings=settings)
    shape = model_shape(model)
    sizes = _group_sizes(ep)
    for operation in operations:
        if operation not in OPERATIONS:
            raise InputError("operation", operation, f"must be one of {', '.join(OPERATIONS)}")
    if token_counts not in get_args(TokenCounts):
        raise InputError("token counts", token_counts, "must be equal or stepped")
    if two_layer not in get_args(TwoLayer):
        raise InputError("two layer", two_layer, "must be dedup or flat")
    result: list[Prediction] = []
    cases = []
    for size in sizes:
        per_rank = _tokens_per_rank(tokens, size, token_counts)
        config = EPConfig(
            ep_size=size,
            num_experts=shape.num_experts if num_experts is None else num_experts,
            num_topk=shape.num_topk if num_topk is None else num_topk,
            hidden=shape.hidden if hidden is None else hidden,
            num_max_tokens_per_rank=max(1, *per_rank),
            expert_alignment=expert_alignment,
            expert_map=expert_map,
        )
        _check_ceilings(config)
        cases.append((config, per_rank, _pod_size(setup.network, size, ranks_per_supernode)))
    for config, per_rank, pod_size in cases:
        counted = count_routing(config, per_rank, pod_size, routing, seed, draws, masked_ratio)
        row = row_bytes(config, dtype=dtype, edition=setup.edition)
        for operation in operations:
            bytes_of = _operation_bytes(operation, row, config.hidden, dtype)
            result.append(
                _one(
                    setup, config, operation, dtype, bytes_of, counted, pod_size, two_layer, num_buffer_bytes
                )
            )
    return Predictions(result)


CEILINGS = {
    "ep_size": 4096,
    "num_experts": 2**20,
    "num_topk": 1024,
    "hidden": 2**20,
    "num_max_tokens_per_rank": 2**26,
}
"""Far beyond any real group; within them counts fit 64 bits, and a matrix of ranks fits a laptop."""


def _check_ceilings(config: EPConfig) -> None:
    for name, most in CEILINGS.items():
        if getattr(config, name) > most:
            raise InputError(name, getattr(config, name), f"must be at most {most:,}")


def _group_sizes(ep: int | Sequence[int]) -> tuple[int, ...]:
    sizes = (ep,) if isinstance(ep, int) else tuple(ep)
    if not sizes:
        raise InputError("ep", sizes, "must name at least one group size")
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise InputError("ep", size, "must be a whole number of at least 1")
    return tuple(int(size) for size in sizes)


def _tokens_per_rank(tokens: int | Sequence[int], size: int, counts: TokenCounts) -> tuple[int, ...]:
    if not isinstance(tokens, int | np.integer):
        if len(tokens) != size:
            raise InputError(
                "tokens", f"{len(tokens)} numbers", f"must be one number, or one for each of {size} ranks"
            )
        return tuple(tokens)
    if isinstance(tokens, bool) or tokens < 1:
        raise InputError("tokens", tokens, "must be a whole number of at least 1")
    if counts == "stepped":
        return stepped_token_counts(int(tokens), size)
    return (int(tokens),) * size


def _pod_size(network: Network, size: int, ranks_per_supernode: int | None) -> int | None:
    """Return ranks of a scale-up domain, None when one holds the whole group.

    Raises:
      InputError: the group does not fit the network.
    """
    if network.num_npus is not None and size > network.num_npus:
        raise InputError("ep", size, f"must not exceed the {network.num_npus:,} cards of {network.name}")
    domain = network.scaleup_domain
    if ranks_per_supernode is not None:
        if not 1 <= ranks_per_supernode <= domain:
            rule = f"must lie between 1 and the {domain} cards of a scale-up domain of {network.name}"
            raise InputError("ranks per supernode", ranks_per_supernode, rule)
        domain = ranks_per_supernode
    if size <= domain:
        return None
    if not network.scaleout_bytes_per_s:
        raise InputError("ep", size, f"must not exceed {domain}: {network.name} has no scale-out network")
    pods = -(-size // domain)
    if network.num_npus is not None and pods * network.scaleup_domain > max(
        network.num_npus, network.scaleup_domain
    ):
        rule = f"needs {pods} supernodes, and {network.name} has {network.num_npus // network.scaleup_domain}"
        raise InputError("ranks per supernode", domain, rule)
    return domain


def _operation_bytes(operation: Operation, row: RowBytes, hidden: int, dtype: Dtype) -> OperationBytes:
    if operation == "combine":
        return OperationBytes(
            logical=row.combine_logical_bytes, wire=row.combine_wire_bytes, payload=2 * hidden
        )
    wire = row.dispatch_wire_bytes
    if operation == "cached-dispatch":
        if row.dispatch_cached_wire_bytes is None:
            raise InputError("operation", operation, "is not known for this edition")
        wire = row.dispatch_cached_wire_bytes
    return OperationBytes(
        logical=row.dispatch_logical_bytes, wire=wire, payload=hidden * element_bytes(dtype)
    )


def _one(
    setup: Setup,
    config: EPConfig,
    operation: Operation,
    dtype: Dtype,
    row: OperationBytes,
    counted: Counted,
    pod_size: int | None,
    two_layer: TwoLayer,
    num_buffer_bytes: int | None,
) -> Prediction:
    """Evaluate all draws of one operation and average them."""
    soft = setup.software
    per_expert = (
        soft.row_unit_combine if operation == "combine" else soft.row_unit_dispatch
    ).value == "expert"
    runs: list[tuple[RankLoads, Terms]] = []
    for counts in counted.draws:
        loads = rank_loads(counts, per_expert=per_expert, pod_dedup=two_layer == "dedup")
        matrix = np.asarray(counts.entries if per_expert else counts.rows, dtype=np.float64) * row.wire
        # Combine sends the rows back. A group in several pods has no single bound: its tiers differ.
        matrix = matrix.T if operation == "combine" else matrix
        link_s = busiest_link_s(setup.network, matrix) if pod_size is None else 0.0
        runs.append(
            (loads, evaluate(operation, loads, row, setup.network, setup.hardware, setup.software, link_s))
        )
    mean = _averages(operation, row, runs)
    terms = {name: 1e6 * float(np.mean([t.means()[name] for _, t in runs])) for name in runs[0][1].means()}
    bound, binding = classify(terms, mode(terms_of.outlasting for _, terms_of in runs))
    limit_rate = payload_rate(setup.network, setup.hardware) / 1e9
    confidence, band, why = validity(setup, config, counted, mean["tokens"], pod_size)
    broken: tuple[Limit, ...] = ()
    buffer_bytes: int | None = None
    if setup.edition == "ascend":
        aivs = int(min(setup.hardware.num_aivs.value, setup.software.used_aivs.value))
        broken = tuple(
            limits(
                config, num_aivs=aivs, dtype=dtype, num_buffer_bytes=num_buffer_bytes, counts=counted.draws[0]
            )
        )
        buffer_bytes = ascend_buffer_bytes(
            ep_size=config.ep_size,
            num_max_tokens_per_rank=config.num_max_tokens_per_rank,
            hidden=config.hidden,
            num_topk=config.num_topk,
            use_fp8=dtype == "fp8",
        ).hint_bytes
    return Prediction(
        system=setup.name,
        hardware=setup.hardware.name,
        software=setup.software.name,
        operation=operation,
        dtype="bf16" if operation == "combine" else dtype,
        ep_size=config.ep_size,
        tokens_per_rank=config.num_max_tokens_per_rank,
        hidden=config.hidden,
        num_experts=config.num_experts,
        num_topk=config.num_topk,
        routing=counted.text,
        bound=bound,
        binding=binding,
        gb_per_s_min=mean["min"],
        gb_per_s_mean=mean["mean"],
        gb_per_s_max=mean["max"],
        time_us=mean["time_us"],
        terms_us=terms,
        wire_gb_per_s=mean["wire"],
        payload_limit_gb_per_s=limit_rate,
        payload_share=mean["wire"] / limit_rate if mean["wire"] else None,
        scaleout_gb_per_s=mean["scaleout"] if pod_size is not None else None,
        rows_per_rank=mean["rows"],
        peak_over_mean=mean["peak"],
        epilogue_us=mean["epilogue_us"] / setup.hardware.hbm_rate.value,
        buffer_bytes=buffer_bytes,
        confidence=confidence,
        error_band=band,
        validity=why,
        assumptions=assumptions(setup, config, counted, pod_size, two_layer),
        limits=broken,
    )


def _averages(
    operation: Operation, row: OperationBytes, runs: list[tuple[RankLoads, Terms]]
) -> dict[str, float]:
    """Return figures of all draws, averaged."""
    rows = []
    for loads, terms in runs:
        time = terms.total
        gb = loads.received * row.logical / time / 1e9 if time else np.zeros(len(loads.received))
        mean_rows = float(loads.received.mean())
        sent = loads.remote_received if operation == "combine" else loads.remote_sent
        rows.append(
            {
                "min": float(gb.min()),
                "mean": float(gb.mean()),
                "max": float(gb.max()),
                "time_us": time * 1e6,
                "wire": float(sent.mean()) * row.wire / time / 1e9 if time else 0.0,
                "scaleout": float(loads.scaleout_logical.mean()) * row.logical / time / 1e9 if time else 0.0,
                "rows": mean_rows,
                "peak": float(loads.received.max()) / mean_rows if mean_rows else 0.0,
                "tokens": float(loads.num_tokens.mean()),
                # Bytes that the epilogue reads and writes on the busiest rank, times 1e6 for microseconds.
                "epilogue_us": 1e6 * _epilogue_bytes(operation, loads, row),
            }
        )
    return {key: float(np.mean([r[key] for r in rows])) for key in rows[0]}


def _epilogue_bytes(operation: Operation, loads: RankLoads, row: OperationBytes) -> float:
    if operation == "combine":
        return float((loads.sent * row.wire + loads.num_tokens * row.payload).max())
    return float((loads.received * row.wire + loads.expanded * row.logical).max())
