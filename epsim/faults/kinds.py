"""Faults on purpose: one line each, what it means in words, and what it can be at most.

A spec is `KIND`, `KIND:WHERE`, `KIND@AMOUNT` or `KIND:WHERE@AMOUNT`; `FORMS` lists the kinds. WHERE of a
cable is `npu3/plane2` (all links both ways between card 3 and the switch of its plane 2, in the netlayer
that routes prefer) or `npu3-sw2` (all links both ways between two vertices, trunks as well).
`epsim.faults.applied` does to a system what a fault says.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final, Literal

from epsim.errors import InputError
from epsim.platform.machine import LINK_RETRY_PS
from topology import TopologyError
from topology.units import format_time, parse_time

Amount = Literal["none", "speed", "loss", "part", "delay"]

_AMOUNTS: Mapping[Amount, str] = {
    "none": "",
    "speed": "a part of the healthy rate, from 1e-6 to below 1",
    "loss": "the chance that a packet is lost, from 0 to 0.5",
    "part": "the most that a service differs by, from 0 to 0.5",
    "delay": "a time such as 100us, at most 1,000s",
}
MIN_SPEED = 1e-6
"""A choice: less than a millionth of its rate is down, and the times of real cases still fit 64 bits."""
MAX_DELAY_PS = 10**15
"""Of a late rank: far beyond any timeout."""
_CABLE = r"npu\d+/plane\d+|(?:npu|sw)\d+-(?:npu|sw)\d+"


@dataclass(frozen=True)
class Form:
    """How a kind of fault is written.

    Args:
      where: pattern of WHERE, "" = there is none.
      amount: kind of AMOUNT.
      example: a valid spec.
      words: meaning; {where} and {amount} stand for what the spec says.
      is_events_only: the flow level cannot show it, and why.
    """

    where: str
    amount: Amount
    example: str
    words: str
    is_events_only: str = ""


FORMS: Final[Mapping[str, Form]] = MappingProxyType({
    "link-down": Form(_CABLE, "none", "link-down:npu3/plane2", "the cable {where} is down, both ways"),
    "link-slow": Form(
        _CABLE, "speed", "link-slow:npu3/plane2@0.5",
        "the cable {where} runs at {amount:.4g} of its rate, both ways",
    ),
    "plane-lost": Form(r"\d+", "none", "plane-lost:2", "plane {where} is lost for every card"),
    "switch-slow": Form(
        r"sw\d+", "speed", "switch-slow:sw3@0.5", "every link of {where} runs at {amount:.4g} of its rate"
    ),
    "rank-slow": Form(
        r"\d+", "speed", "rank-slow:5@0.8", "memory and engine of rank {where} run at {amount:.4g} of theirs"
    ),
    "rank-late": Form(
        r"\d+", "delay", "rank-late:5@100us",
        "rank {where} enters {amount} late, and all others wait for it at the entry barrier",
    ),
    "lossy": Form(
        _CABLE, "loss", "lossy:npu3/plane2@1e-4",
        "the cable {where} loses {amount:.4g} of its packets, both ways; each loss costs a link round trip "
        f"of {format_time(LINK_RETRY_PS)} (go-back-N)",
    ),
    "miscabled": Form(
        r"npu\d+/plane\d+<->npu\d+/plane\d+", "none", "miscabled:npu3/plane2<->npu4/plane5",
        "the far ends of the cables {where} are swapped",
    ),
    "jitter": Form(
        "", "part", "jitter@0.02",
        "the service of each chunk takes up to {amount:.4g} of itself more or less",
        "its rates are means, which jitter leaves as they are",
    ),
    "rank-dead": Form(
        r"\d+", "none", "rank-dead:5", "rank {where} never comes", "it runs to an end, and this has none"
    ),
    "receiver-stuck": Form(
        r"\d+", "none", "receiver-stuck:5", "rank {where} never drains what comes in",
        "it runs to an end, and this has none",
    ),
})  # fmt: skip
"""Kind -> form, as in `--fault`."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong.

    Args:
      kind: key of `FORMS`.
      where: rank, plane, switch or cable, as written.
      amount: speed, chance or part; a delay in picoseconds.
    """

    kind: str
    where: str = ""
    amount: float = 0.0

    @property
    def form(self) -> Form:
        """How its kind is written."""
        return FORMS[self.kind]

    @property
    def rank(self) -> int:
        """The rank of a fault that has one."""
        return int(self.where)

    @property
    def meaning(self) -> str:
        """What is wrong, in words."""
        amount = format_time(self.amount) if self.form.amount == "delay" else self.amount
        return self.form.words.format(where=self.where.replace("<->", " and "), amount=amount)

    def __str__(self) -> str:
        """Write the spec as `parse_fault` reads it."""
        where = f":{self.where}" if self.where else ""
        if self.form.amount == "none":
            return self.kind + where
        if self.form.amount == "delay":
            return f"{self.kind}{where}@{self.amount / 1e6:.12g}us"
        return f"{self.kind}{where}@{self.amount:.12g}"


def parse_fault(text: str) -> Fault:
    """Read a spec.

    Raises:
      InputError: it has no valid form; the rule names the nearest one.
    """
    kind, where, amount = split_spec(text)
    form = FORMS[kind]
    is_good = where is None if not form.where else re.fullmatch(form.where, where or "")
    if not is_good:
        raise InputError("fault", text, f"must be written as {form.example}")
    return Fault(kind, where or "", _amount(text, form, amount))


def parse_family(text: str) -> Fault:
    """Read a spec that leaves WHERE out: it stands for all places of its kind, as "rank-slow@0.8".

    Raises:
      InputError: it names a place, has no places, or has no valid form.
    """
    kind, where, amount = split_spec(text)
    form = FORMS[kind]
    if not form.where or kind == "miscabled":
        known = ", ".join(name for name, other in FORMS.items() if other.where and name != "miscabled")
        raise InputError("each", text, f"must be a kind that has places: {known}")
    if where is not None:
        example = re.sub(r":[^@]*", "", form.example)
        raise InputError("each", text, f"every place is tried, so write {example}, or use --fault")
    return Fault(kind, "", _amount(text, form, amount))


def split_spec(text: str) -> tuple[str, str | None, str | None]:
    """Cut a spec into kind, place and amount; None = not given.

    Raises:
      InputError: the kind is unknown; the rule names the nearest one.
    """
    match = re.fullmatch(r"([^:@]*)(?::([^@]*))?(?:@(.*))?", text.strip())
    kind = match[1] if match else ""
    if match is None or kind not in FORMS:
        near = get_close_matches(kind, FORMS, n=1, cutoff=0.0)[0]
        known = ", ".join(FORMS)
        raise InputError("fault", text, f"nearest is {FORMS[near].example}; kinds are {known}")
    return kind, match[2], match[3]


def _amount(text: str, form: Form, word: str | None) -> float:
    if form.amount == "none":
        if word is not None:
            raise InputError("fault", text, f"takes no amount; write {form.example}")
        return 0.0
    rule = f"must be written as {form.example}, with {_AMOUNTS[form.amount]}"
    if word is None:
        raise InputError("fault", text, rule)
    try:
        value = float(parse_time(word)) if form.amount == "delay" else float(word)
    except (ValueError, TopologyError):
        raise InputError("fault", text, rule) from None
    # NaN fails every comparison, so it is refused as well.
    inside = {
        "speed": MIN_SPEED <= value < 1,
        "loss": 0 <= value <= 0.5,
        "part": 0 <= value <= 0.5,
        "delay": 0 <= value <= MAX_DELAY_PS,
    }
    if not inside[form.amount]:
        raise InputError("fault", text, rule)
    return value


def parse_faults(faults: "Iterable[str | Fault]", level: str) -> tuple[Fault, ...]:
    """Read specs and check that a level can show them.

    Args:
      faults: specs, or faults that are read already.
      level: "flow" or "events".

    Raises:
      InputError: a spec has no valid form, stands there twice, or is nothing for the level.
    """
    if isinstance(faults, str):
        raise InputError("faults", faults, f'must be a list of specs, as ["{faults}"]')
    found = tuple(parse_fault(fault) if isinstance(fault, str) else fault for fault in faults)
    for position, fault in enumerate(found):
        if not isinstance(fault, Fault):
            raise InputError("fault", fault, "must be a spec as text, or a Fault")
        if level == "flow" and fault.form.is_events_only:
            rule = f"is nothing for the flow level: {fault.form.is_events_only}; use level events"
            raise InputError("fault", str(fault), rule)
        if fault in found[:position]:
            raise InputError("fault", str(fault), "is there twice")
    return found


def help_text(kinds: Sequence[str] = tuple(FORMS)) -> str:
    """Return one line per kind for people: an example and its meaning."""
    return "\n".join(f"{FORMS[kind].example}: {parse_fault(FORMS[kind].example).meaning}" for kind in kinds)
