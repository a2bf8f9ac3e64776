"""Spray by plain loops over single links: slow, and independent of every index in the package."""

from fractions import Fraction

from topology import NETLAYER_SERVER


def spray_shares(topology, src, dst):
    """Share of a flow's bytes on each link, {link: Fraction}; None when no netlayer joins the pair."""
    layers = [layer for layer in topology.netlayers() if layer != NETLAYER_SERVER]
    layers.sort(key=lambda layer: (-max(topology.npu_rate(layer)), layer))
    for layer in layers or [NETLAYER_SERVER]:
        shares = layer_shares(topology, layer, src, dst)
        if shares:
            return shares
    return None


def layer_shares(topology, netlayer, src, dst):
    """Spread over direct links, or else equally over planes, then spines, then parallel links."""
    links = [
        (link, int(topology.link_src[link]), int(topology.link_dst[link]), int(topology.link_plane[link]))
        for link in range(topology.num_links)
        if topology.link_netlayer[link] == netlayer
    ]
    direct = [link for link, a, b, _ in links if (a, b) == (src, dst)]
    if direct:
        return {link: Fraction(1, len(direct)) for link in direct}
    by_plane = [plane_shares(topology, links, plane, src, dst) for plane in sorted({p for *_, p in links})]
    usable = [shares for shares in by_plane if shares]
    return {link: share / len(usable) for shares in usable for link, share in shares.items()}


def plane_shares(topology, links, plane, src, dst):
    ups = [(link, b) for link, a, b, p in links if p == plane and a == src and b >= topology.num_npus]
    downs = [(link, a) for link, a, b, p in links if p == plane and b == dst and a >= topology.num_npus]
    if not ups or not downs:
        return {}
    leaf_up, leaf_down = ups[0][1], downs[0][1]
    shares = {link: Fraction(1, len(ups)) for link, _ in ups}
    shares |= {link: Fraction(1, len(downs)) for link, _ in downs}
    if leaf_up == leaf_down:
        return shares
    rising, falling = {}, {}
    for link, a, b, p in links:
        if p == plane and a == leaf_up and b >= topology.num_npus:
            rising.setdefault(b, []).append(link)
        if p == plane and b == leaf_down and a >= topology.num_npus:
            falling.setdefault(a, []).append(link)
    spines = rising.keys() & falling.keys()
    if not spines:
        return {}
    for table in (rising, falling):
        for spine in spines:
            shares |= {link: Fraction(1, len(spines) * len(table[spine])) for link in table[spine]}
    return shares
