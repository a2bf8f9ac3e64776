"""The closed form as a function of free parameters: counted once per row, evaluated many times."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from epsim.calibration.cases import Target, metric_bytes, target_of
from epsim.calibration.measured import SCALEOUT, Measurement, Range
from epsim.calibration.result import Residual
from epsim.errors import InputError
from epsim.model.closedform import OperationBytes, evaluate
from epsim.model.loads import Floats, RankLoads, rank_loads
from epsim.platform.network import Network, busiest_link_s
from epsim.platform.platform import Platform, make_platform
from epsim.platform.profile import Hardware, Software
from epsim.platform.quantity import Parameter, Quantity
from reference.config import EPConfig
from reference.counts import Counts
from reference.edition import EditionName
from reference.errors import ConfigError
from reference.memory.sizes import row_bytes
from reference.routing.expected import expected_rows
from reference.routing.generate import stepped_token_counts
from topology.source import Source


@dataclass(frozen=True, kw_only=True, eq=False)
class FitCase:
    """One row, ready to be evaluated.

    Args:
      row: the measurement.
      loads: rows per rank.
      bytes_of: bytes per row of the operation.
      network: rates.
      link_s: what the busiest link needs at its nominal rate, seconds.
    """

    row: Measurement
    loads: RankLoads
    bytes_of: OperationBytes
    network: Network
    link_s: float

    @property
    def unit(self) -> str:
        """Of the target."""
        return "us" if self.row.bandwidth is None else "GB/s"

    @property
    def measured(self) -> Range:
        """The range whose mid-point is the target: bandwidth where there is one."""
        found = self.row.bandwidth or self.row.latency
        assert found is not None
        return found

    def answer(self, hardware: Hardware, software: Software) -> float:
        """Return the predicted GB/s by the row's metric, or us."""
        terms = evaluate(
            self.row.op, self.loads, self.bytes_of, self.network, hardware, software, self.link_s
        )
        if self.row.bandwidth is None:
            return terms.total * 1e6
        logical = float(self.loads.received.mean()) * self.bytes_of.logical
        return metric_bytes(self.row, logical)[0] / terms.total / 1e9


@dataclass(frozen=True, kw_only=True, eq=False)
class FitModel:
    """All rows of a fit and the profiles that they share.

    Args:
      cases: the rows.
      hardware: the card.
      software: what to start from, held numbers set.
      names: free parameters, in the order of the vectors.
    """

    cases: tuple[FitCase, ...]
    hardware: Hardware
    software: Software
    names: tuple[str, ...]

    def with_values(self, values: Floats, source: Source | None = None) -> Software:
        """Return the software profile with the free parameters set."""
        changes: dict[str, Any] = {}
        for name, value in zip(self.names, values, strict=True):
            old: Quantity = getattr(self.software, name)
            changes[name] = replace(old, value=float(value), source=source or old.source)
        return replace(self.software, **changes)

    def with_knee(self, knee: float, source: Source | None = None) -> "FitModel":
        """Return the same rows with another knee."""
        old = self.software.fanout_knee
        held = replace(old, value=float(knee), source=source or old.source)
        return replace(self, software=replace(self.software, fanout_knee=held))

    def keep(self, *, ep_size: int, is_left_out: bool) -> "FitModel":
        """Return the rows of one group size, or all the others."""
        kept = tuple(case for case in self.cases if (case.row.ep_size == ep_size) != is_left_out)
        return replace(self, cases=kept)

    def targets(self) -> Floats:
        """Return [m] mid-points."""
        return np.array([case.measured.middle for case in self.cases])

    def answers(self, values: Floats) -> Floats:
        """Return [m] predictions, in the units of the targets."""
        software = self.with_values(values)
        return np.array([case.answer(self.hardware, software) for case in self.cases])

    def residuals(self, values: Floats) -> tuple[Residual, ...]:
        """Return predictions beside measurements."""
        return tuple(
            Residual(
                id=case.row.id,
                op=case.row.op,
                ep_size=case.row.ep_size,
                unit=case.unit,
                measured=case.measured,
                predicted=float(answer),
            )
            for case, answer in zip(self.cases, self.answers(values), strict=True)
        )

    @property
    def knee(self) -> float:
        """The knee of the profile; where it is itself free, the one to start from."""
        return self.software.fanout_knee.value

    @property
    def ep_sizes(self) -> tuple[int, ...]:
        """Group sizes, ascending."""
        return tuple(sorted({case.row.ep_size for case in self.cases}))


def free_parameter(name: str) -> Parameter:
    """Return the declaration of a software parameter that a fit may move.

    Raises:
      InputError: no such parameter, or one that is a word or a whole number.
    """
    specs = {spec.name: spec.metadata for spec in fields(Software) if spec.metadata}
    smooth = [key for key, data in specs.items() if "parameter" in data and not data["parameter"].whole]
    if name not in smooth:
        raise InputError("fit", name, f"must be a continuous software parameter: {', '.join(smooth)}")
    declared: Parameter = specs[name]["parameter"]
    return declared


def build_model(
    rows: Sequence[Measurement],
    names: tuple[str, ...],
    *,
    software: str | Software | None,
    settings: dict[str, str | float],
) -> FitModel:
    """Count the rows once and bring them to one pair of profiles.

    Args:
      rows: at least one.
      names: free parameters.
      software: profile to start from; None = the rows' own, which must then be one.
      settings: parameters that are held at other values than the profile's.

    Raises:
      InputError: rows of different cards, of several scale-up domains, or that cannot be predicted.
    """
    platforms: dict[tuple[str, str | None], Platform] = {}
    cases: list[FitCase] = []
    counted: dict[tuple[object, ...], Counts] = {}
    first: Platform | None = None
    for row in rows:
        target = target_of(row)
        wanted = software or target.software
        key = (target.system, wanted if isinstance(wanted, str) else None)
        if key not in platforms:
            platforms[key] = make_platform(
                target.system, software=wanted, settings={**target.settings, **settings}
            )
        platform = platforms[key]
        first = first or platform
        _same_profiles(row, platform, first)
        cases.append(_case(row, target, platform, counted))
    assert first is not None
    return FitModel(cases=tuple(cases), hardware=first.hardware, software=first.software, names=names)


def _same_profiles(row: Measurement, platform: Platform, first: Platform) -> None:
    for word, name, other in (
        ("hardware", platform.hardware.name, first.hardware.name),
        ("software", platform.software.name, first.software.name),
    ):
        if name != other:
            raise InputError(
                row.where, f"{word} {name}", f"must be {other}, as the rows above: one fit, one {word}"
            )


def _case(
    row: Measurement, target: Target, platform: Platform, counted: dict[tuple[object, ...], Counts]
) -> FitCase:
    network = platform.network
    if row.metric == SCALEOUT or row.ep_size > (target.ranks_per_supernode or network.scaleup_domain):
        rule = f"must fit one scale-up domain of {network.scaleup_domain}: a fit does not span several"
        raise InputError(f"{row.where}, ep_size", row.ep_size, rule)
    is_stepped = target.token_counts == "stepped"
    tokens = (
        stepped_token_counts(row.tokens_per_rank, row.ep_size)
        if is_stepped
        else (row.tokens_per_rank,) * row.ep_size
    )
    try:
        config = EPConfig(
            ep_size=row.ep_size,
            num_experts=row.num_experts,
            num_topk=row.num_topk,
            hidden=row.hidden,
            num_max_tokens_per_rank=row.tokens_per_rank,
        )
        key = (config, is_stepped)
        if key not in counted:
            counted[key] = expected_rows(config, tokens)
    except ConfigError as error:
        raise InputError(f"{row.where}, {error.field}", error.value, error.rule) from error
    counts = counted[key]
    is_combine = row.op == "combine"
    unit = platform.software.row_unit_combine if is_combine else platform.software.row_unit_dispatch
    per_expert = unit.value == "expert"
    bytes_of = operation_bytes(row, config, platform.edition)
    matrix = np.asarray(counts.entries if per_expert else counts.rows, dtype=np.float64) * bytes_of.wire
    return FitCase(
        row=row,
        loads=rank_loads(counts, per_expert=per_expert),
        bytes_of=bytes_of,
        network=network,
        link_s=busiest_link_s(network, matrix.T if is_combine else matrix),
    )


def operation_bytes(row: Measurement, config: EPConfig, edition: EditionName) -> OperationBytes:
    """Return the bytes per row of a measured operation."""
    sizes = row_bytes(config, dtype=row.element_dtype, edition=edition)
    if row.op == "combine":
        return OperationBytes(
            logical=sizes.combine_logical_bytes, wire=sizes.combine_wire_bytes, payload=2 * row.hidden
        )
    wire = sizes.dispatch_wire_bytes if row.op == "dispatch" else sizes.dispatch_cached_wire_bytes
    if wire is None:
        raise InputError(f"{row.where}, op", row.op, "has no known record size in this library")
    return OperationBytes(logical=sizes.dispatch_logical_bytes, wire=wire, payload=row.hidden)
