"""`epsim.predict`: from names and numbers to predictions of dispatch and combine."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from epsim.errors import InputError
from epsim.inputs.counting import Draws, check_draws
from epsim.inputs.groups import (
    Group,
    Table,
    check_operations,
    check_token_counts,
    count,
    group_sizes,
    place,
    pod_size_of,
)
from epsim.model.answer import Case
from epsim.model.closedform import Operation
from epsim.model.options import TokenCounts, TwoLayer
from epsim.platform.platform import make_platform
from epsim.platform.presets import model_shape
from epsim.platform.profile import Hardware, Software
from epsim.prediction import Prediction, Predictions
from reference.config import ExpertMap
from reference.memory.sizes import Dtype
from reference.routing.manifest import Workload
from reference.topk import TopK
from topology import Topology


def predict(
    system: str | Topology = "ubl128",
    *,
    model: str = "benchmark",
    ep: int | Sequence[int] = (8, 16, 32, 64, 128),
    tokens: int | Sequence[int] | None = None,
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
    workload: Workload | None = None,
    port_rate: str | None = None,
    npus: Sequence[int] | None = None,
) -> Predictions:
    """Predict dispatch and combine.

    Args:
      system: preset ("ubl128", "clos:1024"), cluster file (.toml), HCCL file (.json), or a Topology.
      model: shape of the layer; `hidden`, `num_experts` and `num_topk` replace single numbers.
      ep: group sizes.
      tokens: tokens per rank, one for all or one per rank (then one group size); None = 16,384, or as
        many as a routing file has.
      token_counts: "equal", or "stepped": rank r sends tokens - r, as the published tests do.
      operations: of "dispatch", "cached-dispatch", "combine".
      dtype: of dispatch, "fp8" or "bf16"; combine is always bf16.
      hidden: elements of a token.
      num_experts: physical experts of the whole group.
      num_topk: experts that a token chooses.
      expert_alignment: rows that an expert's block is padded to.
      expert_map: placement with redundant experts.
      routing: "uniform", "zipf:1.1", ... (see `reference.routing.generate.parse_routing`), a routing file or
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
      workload: group, tokens, routing, seed and dtype together (see `reference.routing.manifest`); replaces
        everything above from `model` to `masked_ratio` but operations and draws.
      port_rate: rate of one port, for HCCL files, which carry none.
      npus: the card of each rank of the only group; None = rank r sits on card r.

    Returns:
      Predictions, by group size and then operation.

    Raises:
      InputError: an argument breaks a rule (field, value, rule).
      ConfigError: group or routing breaks a rule.
      TopologyError: a topology breaks a rule.
    """
    platform = make_platform(
        system, hardware=hardware, software=software, settings=settings, port_rate=port_rate
    )
    check_operations(operations)
    _check_words(token_counts, two_layer)
    check_draws(draws)
    if npus is not None and ranks_per_supernode is not None:
        raise InputError("ranks per supernode", ranks_per_supernode, "goes without npus, which say it")
    sources: list[Workload | Table]
    sizes = group_sizes(ep) if workload is None else (workload.config.ep_size,)
    # All groups are checked, against the network first, before the first is counted.
    pods = [pod_size_of(platform.network, size, ranks_per_supernode) for size in sizes]
    cards, pod_size = place(platform.network, sizes, npus)
    if cards is not None:
        pods = [pod_size]
    if workload is not None:
        sources = [workload]
    else:
        shape = model_shape(model)
        group = Group(
            num_experts=shape.num_experts if num_experts is None else num_experts,
            num_topk=shape.num_topk if num_topk is None else num_topk,
            hidden=shape.hidden if hidden is None else hidden,
            expert_alignment=expert_alignment,
            expert_map=expert_map,
            tokens=tokens,
            token_counts=token_counts,
            routing=routing,
            seed=seed,
            masked_ratio=masked_ratio,
            draws=draws,
            dtype=dtype,
        )
        sources = [group.source(size) for size in sizes]
    result: list[Prediction] = []
    workloads: list[Workload] = []
    for source, pod_size in zip(sources, pods, strict=True):
        counted = count(source, pod_size, draws)
        workloads.append(counted.workload)
        for operation in operations:
            case = Case(
                platform=platform,
                config=counted.workload.config,
                operation=operation,
                dtype=counted.workload.dispatch_dtype,
                pod_size=pod_size,
                two_layer=two_layer,
                num_buffer_bytes=num_buffer_bytes,
                npus=cards,
            )
            result.append(case.predict(counted))
    return Predictions(result, workloads)


def _check_words(token_counts: TokenCounts, two_layer: TwoLayer) -> None:
    check_token_counts(token_counts)
    if two_layer not in get_args(TwoLayer):
        raise InputError("two layer", two_layer, "must be dedup or flat")
