"""What is suspicious in HCCL files that parse: findings, each a sentence that names rank, card or server.

Rules about the graph they describe are in `checks`; here are those that only the files show.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations, islice

from topology.checks import Finding, Severity
from topology.ranktable import RankEntry, RankTable
from topology.topojson import PEER2PEER, TopoEdge, TopoFile

TABLE_RULES: dict[str, tuple[Severity, str]] = {
    "card-not-in-topo": ("error", "every card of the table is in the topo file"),
    "ports-unequal": ("error", "both ends of an edge list as many ports"),
    "server-split": ("warning", "cards of one machine have one server id"),
    "ranks-not-packed": ("warning", "the ranks of a server follow each other"),
    "plane-id-missing": ("warning", "on a netlayer all ranks name their planes, or none does"),
    "level-missing": ("warning", "a rank has every netlayer that others have"),
    "port-count": ("warning", "ranks of one instance have as many ports as each other"),
    "address-shared": ("warning", "an address belongs to one rank"),
    "port-not-in-topo": ("warning", "a port of the table is on an edge of the topo file"),
    "port-shared": ("warning", "a port of a card leads to one place"),
    "edge-repeated": ("warning", "a cable is listed once per protocol"),
    "topo-type-unknown": ("warning", "a topology type is 1DMESH, 2DMESH or CLOS"),
    "no-edges": ("warning", "a topo file has edges"),
}
"""Rule id -> severity and what healthy files do."""

_TOPO_TYPES = ("", "1DMESH", "2DMESH", "CLOS")
_Sentences = Iterator[tuple[str, str]]


def check_hccl(topo: TopoFile | None, table: RankTable | None, *, limit: int = 8) -> list[Finding]:
    """Check HCCL files, one or both.

    Args:
      topo: the topo file, or None.
      table: the rank table, or None.
      limit: findings per rule; the last one counts the rest.

    Returns:
      Findings, errors first; empty when nothing is suspicious.
    """
    found: dict[str, list[str]] = defaultdict(list)
    parts: list[_Sentences] = []
    if table is not None:
        parts += [
            _split_servers(table),
            _packing(table),
            _planes(table),
            _levels(table),
            _port_counts(table),
            _addresses(table),
        ]
    if topo is not None:
        parts += [_edges(topo), _shared_ports(topo)]
    if topo is not None and table is not None:
        parts.append(_against_topo(topo, table))
    for rule, sentence in (pair for part in parts for pair in part):
        found[rule].append(sentence)
    order: tuple[Severity, ...] = ("error", "warning")
    return [
        Finding(severity=severity, rule=rule, message=message)
        for severity in order
        for rule, (its_severity, _) in TABLE_RULES.items()
        if its_severity == severity
        for message in _limited(found[rule], limit)
    ]


def _limited(sentences: list[str], limit: int) -> list[str]:
    shown = list(islice(sentences, limit))
    if len(sentences) > len(shown) and shown:
        shown[-1] += f" (and {len(sentences) - len(shown)} more)"
    return shown


def _split_servers(table: RankTable) -> _Sentences:
    """Find servers that look like parts of one machine (two pods on one host get two server ids).

    Signs: an innermost address in both, or local and device ids that complete each other, which cards
    of two machines do not do: each machine counts its own from 0.
    """
    members: dict[str, list[RankEntry]] = defaultdict(list)
    for rank in table.ranks:
        members[rank.server_id].append(rank)
    facts = {
        server: (
            {address.addr for rank in ranks for address in rank.levels[0].addresses},
            {rank.local_id for rank in ranks},
            {rank.device_id for rank in ranks} - {None},
        )
        for server, ranks in members.items()
    }
    # Servers with the same local ids cannot complete each other, so one of each kind is compared.
    kinds: dict[frozenset[int], str] = {}
    for server, (_, local_ids, _) in facts.items():
        kinds.setdefault(frozenset(local_ids), server)
    for a, b in combinations(kinds.values(), 2):
        if (
            not facts[a][1] & facts[b][1]
            and not facts[a][2] & facts[b][2]
            and _same_pod(members[a], members[b])
        ):
            ids = f"local ids {sorted(facts[a][1])} and {sorted(facts[b][1])}"
            yield (
                "server-split",
                (
                    f"servers {a!r} and {b!r} hold {ids} of what may be one machine; as two servers "
                    "they get the network instead of the link inside the server"
                ),
            )
    yield from _servers_with_one_address({server: addresses for server, (addresses, _, _) in facts.items()})


def _servers_with_one_address(addresses: dict[str, set[str]]) -> _Sentences:
    owner: dict[str, str] = {}
    for server, its_addresses in addresses.items():
        for addr in sorted(its_addresses - {""}):
            if owner.setdefault(addr, server) != server:
                both = f"servers {owner[addr]!r} and {server!r}"
                yield "server-split", f"{both} share the address {addr}, so they may be one machine"


def _same_pod(a: list[RankEntry], b: list[RankEntry]) -> bool:
    outer = [{level.instance_id for rank in ranks for level in rank.levels[1:2]} for ranks in (a, b)]
    return outer[0] == outer[1]


def _packing(table: RankTable) -> _Sentences:
    """Find servers whose ranks are scattered: libraries that expect packed ranks cannot start there."""
    members: dict[str, list[int]] = defaultdict(list)
    for rank in table.ranks:
        members[rank.server_id].append(rank.rank_id)
    for server, ranks in members.items():
        if ranks[-1] - ranks[0] >= len(ranks):
            yield (
                "ranks-not-packed",
                f"server {server!r} holds {_ranks(ranks)}, which do not follow each other",
            )


def _planes(table: RankTable) -> _Sentences:
    for netlayer in table.netlayers:
        levels = [(rank.rank_id, rank.level(netlayer)) for rank in table.ranks]
        with_ports = [(rank_id, level) for rank_id, level in levels if level is not None and level.ports]
        unnamed = [n for n, level in with_ports if all(a.plane_id is None for a in level.addresses)]
        if unnamed and len(unnamed) < len(with_ports):
            others = len(with_ports) - len(unnamed)
            sentence = f"netlayer {netlayer} has no plane_id for {_ranks(unnamed)}, but for {others} others"
            yield "plane-id-missing", sentence


def _levels(table: RankTable) -> _Sentences:
    for netlayer in table.netlayers:
        missing = [rank.rank_id for rank in table.ranks if rank.level(netlayer) is None]
        if missing:
            yield "level-missing", f"netlayer {netlayer} is missing for {_ranks(missing)}"


def _port_counts(table: RankTable) -> _Sentences:
    counts: dict[tuple[int, str], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank in table.ranks:
        for level in rank.levels:
            counts[level.netlayer, level.instance_id][len(level.ports)].append(rank.rank_id)
    for (netlayer, instance), ranks in counts.items():
        usual = max(ranks, key=lambda count: len(ranks[count]))
        for count in sorted(ranks.keys() - {usual}):
            where = f"netlayer {netlayer} in {instance!r}"
            sentence = f"{where} has {count} ports for {_ranks(ranks[count])}, and {usual} for the others"
            yield "port-count", sentence


def _addresses(table: RankTable) -> _Sentences:
    owners: dict[str, set[int]] = defaultdict(set)
    for rank in table.ranks:
        for level in rank.levels:
            for address in level.addresses:
                owners[address.addr].add(rank.rank_id)
    for addr, ranks in owners.items():
        if len(ranks) > 1 and addr:
            yield "address-shared", f"{_ranks(sorted(ranks))} share the address {addr}"


def _edges(topo: TopoFile) -> _Sentences:
    if not topo.edges:
        yield "no-edges", "edge_list is empty, so no card reaches another"
    seen: dict[tuple[object, ...], int] = {}
    for number, edge in enumerate(topo.edges):
        if edge.link_type == PEER2PEER and len(edge.local_a_ports) != len(edge.local_b_ports):
            ends = f"{len(edge.local_a_ports)} and {len(edge.local_b_ports)}"
            yield "ports-unequal", f"edge_list[{number}] lists {ends} ports at its ends"
        if edge.topo_type not in _TOPO_TYPES:
            yield "topo-type-unknown", f"edge_list[{number}] has the topo_type {edge.topo_type!r}"
        for protocol in edge.protocols or ("",):
            key = (edge.netlayer, edge.position, protocol, frozenset(_ends(edge)))
            if seen.setdefault(key, number) != number:
                yield "edge-repeated", f"edge_list[{number}] repeats edge_list[{seen[key]}]"
                break


def _ends(edge: TopoEdge) -> Iterable[tuple[int | None, tuple[str, ...]]]:
    return (edge.local_a, edge.local_a_ports), (edge.local_b, edge.local_b_ports)


def _shared_ports(topo: TopoFile) -> _Sentences:
    places: dict[tuple[int, str], set[str]] = defaultdict(set)
    for edge in topo.edges:
        if edge.position == "DEVICE":
            fabric = f"the fabric of netlayer {edge.netlayer}"
            ends = [(edge.local_a, edge.local_a_ports, edge.local_b)]
            if edge.local_b is not None:
                ends.append((edge.local_b, edge.local_b_ports, edge.local_a))
            for card, ports, peer in ends:
                for port in ports:
                    places[card, port].add(fabric if peer is None else f"card {peer}")
    for (card, port), ends_of_port in places.items():
        if len(ends_of_port) > 1:
            yield (
                "port-shared",
                f"port {port} of card {card} leads to {' and to '.join(sorted(ends_of_port))}",
            )


def _against_topo(topo: TopoFile, table: RankTable) -> _Sentences:
    cards = set(topo.peers)
    known: set[tuple[int, int, str]] = set()
    for edge in topo.edges:
        known.update((edge.netlayer, edge.local_a, port) for port in edge.local_a_ports)
        if edge.local_b is not None:
            known.update((edge.netlayer, edge.local_b, port) for port in edge.local_b_ports)
    layers = {netlayer for netlayer, _, _ in known}
    for rank in table.ranks:
        if rank.local_id not in cards:
            yield (
                "card-not-in-topo",
                f"rank {rank.rank_id} is card {rank.local_id}, which is not in peer_list",
            )
            continue
        for level in rank.levels:
            absent = [p for p in level.ports if (level.netlayer, rank.local_id, p) not in known]
            # A layer that the topo file leaves out altogether is described by the table alone.
            if absent and level.netlayer in layers:
                ports = ", ".join(absent)
                yield (
                    "port-not-in-topo",
                    f"rank {rank.rank_id} has {ports} on netlayer {level.netlayer}, no edge has",
                )


def _ranks(ranks: list[int]) -> str:
    """Name ranks: the first few, then how many there are."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(str(rank) for rank in ranks[:4])
    return f"ranks {shown}" if len(ranks) <= 4 else f"ranks {shown}, ... ({len(ranks)} in all)"
