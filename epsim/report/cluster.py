"""A cluster under load as a table for people and JSON for programs."""

from dataclasses import asdict

from epsim.cluster import ClusterAnswer
from epsim.report.prediction import plain_table


def cluster_text(answer: ClusterAnswer) -> str:
    """Return the answer as plain text, the slowest tier first."""
    lines = [
        f"{answer.system}: {answer.load}; {answer.num_cards:,} cards, {answer.num_flows:,} flows",
        f"busiest link {answer.time_us:,.1f} us at payload rate; no schedule is faster",
    ]
    if answer.exact_us is not None:
        lines.append(f"max-min fair transfer {answer.exact_us:,.1f} us, exact by symmetry")
    if answer.alone_us is not None:
        slower = answer.time_us / answer.alone_us if answer.alone_us else 1.0
        lines.append(f"the worst group alone {answer.alone_us:,.1f} us; together {slower:.2f} times that")
    rows = [(f"{tier.time_us:,.1f}", f"{tier.gbytes:.4g}", tier.name, tier.link) for tier in answer.tiers]
    return "\n".join([*lines, "", plain_table(("us", "GB", "tier", "its busiest link"), rows)])


def cluster_json(answer: ClusterAnswer) -> str:
    """Return the answer as JSON text."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(asdict(answer)), indent=2).decode()
