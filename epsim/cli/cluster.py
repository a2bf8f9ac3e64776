"""`epsim cluster`: what do many groups do to each other on a large network?"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from epsim.cli.wholes import Whole

Flag = Parameter(negative="")


def cluster(
    *,
    system: Annotated[str, Parameter(help="preset (clos:262144), cluster .toml or HCCL .json")] = "clos:1024",
    ep: Annotated[int | None, Whole, Parameter(help="ranks of a group; without: 128")] = None,
    groups: Annotated[int | None, Whole, Parameter(help="how many; without: as many as fit")] = None,
    placement: Annotated[
        Literal["packed", "spread", "random"] | None,
        Parameter(help="fill supernodes (packed; without), neighbours in different ones, or drawn by seed"),
    ] = None,
    policy: Annotated[Literal["spray", "flow-hash"], Parameter(help="path choice")] = "spray",
    op: Annotated[
        Literal["dispatch", "combine"] | None, Parameter(help="what all groups do at once; without: dispatch")
    ] = None,
    model: Annotated[
        str | None,
        Parameter(help="shape: benchmark (without), v3, v4-flash, v4-pro, v4.1-flash"),
    ] = None,
    tokens: Annotated[int | None, Whole, Parameter(help="tokens per rank; without: 16384")] = None,
    routing: Annotated[str | None, Parameter(help="uniform (without), zipf:1.1, ..., or a file")] = None,
    seed: Annotated[int | None, Whole, Parameter(help="of routing, placement and hash; without: 0")] = None,
    all_to_all: Annotated[
        str | None,
        Parameter(help="instead of groups: every card sends so much to every other one, as 7KiB"),
    ] = None,
    settings: Annotated[
        list[str] | None, Parameter(name="--set", negative="", help="NAME=VALUE, replaces one profile number")
    ] = None,
    json: Annotated[bool, Flag, Parameter(help="print JSON for programs")] = False,
) -> None:
    """Find the link that many groups fill first, up to 262,144 cards.

    - `epsim cluster --system clos:4096 --placement random`
    - `epsim cluster --system clos:262144 --ep 128 --placement random --policy flow-hash`
    - `epsim cluster --system clos:262144 --all-to-all 7168B`
    """
    from epsim.cli.predict import parse_settings
    from epsim.cluster import check_pair_bytes, exchange_on_cluster, groups_on_cluster, payload_topology
    from epsim.platform.platform import make_platform
    from epsim.report.cluster import cluster_json, cluster_text

    of_rows = {"model": model, "tokens": tokens, "routing": routing, "seed": seed}
    of_groups = {"placement": placement, "seed": seed}
    if all_to_all is not None:
        from topology.units import parse_size

        _check_exchange(policy, {"ep": ep, "groups": groups, "op": op} | of_groups | of_rows)
        size = parse_size(all_to_all, "all-to-all")
        check_pair_bytes(size, "all-to-all", all_to_all)
        answer = exchange_on_cluster(make_platform(system, settings=parse_settings(settings)), size)
    else:
        from epsim.inputs.groups import group_bytes

        _check_seed(seed, routing, placement, policy)
        platform = make_platform(system, settings=parse_settings(settings))
        payload_topology(platform)  # refuses a system before any rows are counted
        matrix = group_bytes(platform, 128 if ep is None else ep, op or "dispatch", **_given(of_rows))
        answer = groups_on_cluster(platform, matrix, num_groups=groups, policy=policy, **_given(of_groups))
    print(cluster_json(answer) if json else cluster_text(answer))


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what was not said, so that the library's defaults hold."""
    return {name: value for name, value in options.items() if value is not None}


def _check_seed(seed: int | None, routing: str | None, placement: str | None, policy: str) -> None:
    """Refuse a seed from which nothing is drawn."""
    from epsim.errors import InputError
    from epsim.inputs.counting import is_table

    # Uniform routing is counted by its expectation.
    draws_rows = routing not in (None, "uniform") and not is_table(routing or "")
    if seed is not None and not (draws_rows or placement == "random" or policy == "flow-hash"):
        rule = "goes with a routing that is drawn, with --placement random or --policy flow-hash"
        raise InputError("seed", seed, rule)


def _check_exchange(policy: str, of_groups: Mapping[str, Any]) -> None:
    """Refuse what one exchange among all cards would ignore."""
    from epsim.errors import InputError

    if policy != "spray":
        raise InputError("policy", policy, "goes with groups; --all-to-all is solved for spray only")
    for name, value in _given(of_groups).items():
        raise InputError(name, value, "goes with groups; --all-to-all is one exchange among all cards")
