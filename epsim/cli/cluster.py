"""`epsim cluster`: what do many groups do to each other on a large network?"""

from typing import Annotated, Literal

from cyclopts import Parameter

from epsim.cli.wholes import Whole

Flag = Parameter(negative="")


def cluster(
    *,
    system: Annotated[str, Parameter(help="preset (clos:262144), cluster .toml or HCCL .json")] = "clos:1024",
    ep: Annotated[int, Whole, Parameter(help="ranks of a group")] = 128,
    groups: Annotated[int | None, Whole, Parameter(help="how many; without: as many as fit")] = None,
    placement: Annotated[
        Literal["packed", "spread", "random"],
        Parameter(help="fill supernodes, neighbours in different ones, or drawn by seed"),
    ] = "packed",
    policy: Annotated[Literal["spray", "flow-hash"], Parameter(help="path choice")] = "spray",
    op: Annotated[Literal["dispatch", "combine"], Parameter(help="what all groups do at once")] = "dispatch",
    model: Annotated[str, Parameter(help="shape: benchmark, v3, v4-flash, v4-pro, v4.1-flash")] = "benchmark",
    tokens: Annotated[int, Whole, Parameter(help="tokens per rank")] = 16_384,
    routing: Annotated[str, Parameter(help="uniform, zipf:1.1, ..., or a file")] = "uniform",
    seed: Annotated[int, Whole, Parameter(help="of routing, placement and hash")] = 0,
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
    from epsim.cluster import exchange_on_cluster, groups_on_cluster
    from epsim.platform.platform import make_platform

    platform = make_platform(system, settings=parse_settings(settings))
    if all_to_all is not None:
        from topology.units import parse_size

        answer = exchange_on_cluster(platform, parse_size(all_to_all, "all-to-all"))
    else:
        from epsim.inputs.groups import group_bytes

        matrix = group_bytes(platform, ep, op, model=model, tokens=tokens, routing=routing, seed=seed)
        answer = groups_on_cluster(
            platform, matrix, num_groups=groups, placement=placement, policy=policy, seed=seed
        )
    from epsim.report.cluster import cluster_json, cluster_text

    print(cluster_json(answer) if json else cluster_text(answer))
