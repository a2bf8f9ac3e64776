"""Exported folders: written whole or not at all, with a record of the case that reads back."""

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import msgspec
import numpy as np

from epsim.errors import InputError
from epsim.exchange.case import ExchangeCase
from epsim.files import write_files
from topology.bound import link_bound
from topology.graph import Topology
from topology.hccl_json import read_regular
from topology.routes import Policy

Simulator = Literal["ns-3-ub", "htsim", "chakra", "simgrid"]
SIMULATORS: tuple[str, ...] = get_args(Simulator)
RECORD_FILE = "epsim-case.json"


class CaseRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is needed to read results: the case, with its system by name.

    Args:
      simulator: whose files lie beside.
      name: of the case.
      system: as given on the command line.
      policy, seed: how flows choose links.
      npus: [R].
      bytes_matrix: [R][R].
      bound_ps: of the busiest link; tells whether the system is still the same.
      start_ps: [R], or None.
      phase: [R][R], or None.
    """

    simulator: Simulator
    name: str
    system: str
    policy: Policy
    seed: int
    npus: list[int]
    bytes_matrix: list[list[int]]
    bound_ps: int
    start_ps: list[int] | None = None
    phase: list[list[int]] | None = None

    def case(self, topology: Topology) -> ExchangeCase:
        """Return the case on the topology of the system.

        Raises:
          InputError: numbers break a rule of the case, or the system has changed since.
        """
        if (
            len({len(row) for row in self.bytes_matrix}) > 1
            or len({len(row) for row in self.phase or []}) > 1
        ):
            raise InputError(RECORD_FILE, "rows of unlike length", "must be a square matrix")
        case = ExchangeCase(
            name=self.name,
            topology=topology,
            npus=np.array(self.npus, np.int64),
            bytes_matrix=np.array(self.bytes_matrix, np.int64),
            start_ps=None if self.start_ps is None else np.array(self.start_ps, np.int64),
            phase=None if self.phase is None else np.array(self.phase, np.int64),
        )
        bound_ps = bound_of(case, self.policy, self.seed)
        if bound_ps != self.bound_ps:
            rule = (
                f"gives {bound_ps} ps on its busiest link, and gave {self.bound_ps} ps when it was exported"
            )
            raise InputError("system", self.system, rule)
        return case


def check_path_seed(policy: Policy, seed: int | None) -> None:
    """Refuse a seed that would be ignored, or that the hash takes for another one.

    Args:
      policy: path choice.
      seed: as given; None = not given.

    Raises:
      InputError: names it.
    """
    if seed is None:
        return
    if not 0 <= seed < 2**64:
        raise InputError(
            "path seed", seed, "must be a whole number from 0 to 2^64 - 1, as the hash has 64 bits"
        )
    if policy != "flow-hash":
        raise InputError("path seed", seed, f"goes with --policy flow-hash, and the policy is {policy}")


def bound_of(case: ExchangeCase, policy: Policy, seed: int) -> int:
    """Return the time of the busiest link, ps."""
    matrix = case.bytes_matrix
    return link_bound(case.topology, matrix, npus=case.npus, policy=policy, seed=seed).time_ps


def record_of(
    case: ExchangeCase, *, simulator: Simulator, system: str, policy: Policy = "spray", seed: int = 0
) -> CaseRecord:
    """Make the record of a case.

    Raises:
      InputError: a seed that the flow hash does not take, or without it.
    """
    check_path_seed(policy, seed or None)
    return CaseRecord(
        simulator=simulator,
        name=case.name,
        system=system,
        policy=policy,
        seed=seed,
        npus=case.npus.tolist(),
        bytes_matrix=case.bytes_matrix.tolist(),
        bound_ps=bound_of(case, policy, seed),
        start_ps=None if case.start_ps is None else case.start_ps.tolist(),
        phase=None if case.phase is None else case.phase.tolist(),
    )


def files_for(
    case: ExchangeCase, simulator: Simulator, *, policy: Policy = "spray", seed: int = 0
) -> Mapping[str, str | bytes]:
    """Write a case for one simulator: file name -> content.

    Raises:
      InputError: unknown simulator, or the case cannot be told to it.
      MissingExtraError: Chakra without `protobuf`.
    """
    if simulator == "ns-3-ub":
        from epsim.exchange.ns3ub import ns3ub_files

        return ns3ub_files(case, policy)
    if simulator == "htsim":
        from epsim.exchange.htsim import htsim_files

        return htsim_files(case)
    if simulator == "chakra":
        from epsim.exchange.chakra import chakra_files

        return chakra_files(case)
    if simulator == "simgrid":
        from epsim.exchange.simgrid import simgrid_files

        return simgrid_files(case, policy, seed=seed)
    raise InputError("simulator", simulator, f"must be one of {', '.join(SIMULATORS)}")


def check_folder(folder: str | Path) -> None:
    """Refuse a folder that exists or cannot be made, before any work.

    Raises:
      InputError: it exists, or the folder that it goes into is missing or not writable.
    """
    target = Path(folder)
    try:
        is_there = target.is_symlink() or target.exists()
        parent = target.parent.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError("output folder", str(folder), f"cannot be written: {reason}") from error
    if is_there:
        raise InputError("output folder", str(folder), "exists already; name a new one")
    if not stat.S_ISDIR(parent.st_mode) or not os.access(target.parent, os.W_OK | os.X_OK):
        raise InputError(
            "output folder", str(folder), f"cannot be written: {target.parent} takes no new folder"
        )


def write_folder(folder: str | Path, files: Mapping[str, str | bytes]) -> None:
    """Make a new folder with files, or nothing.

    Everything is written into a folder beside it, which is then renamed.

    Raises:
      InputError: the folder exists or cannot be made.
    """
    check_folder(folder)
    target = Path(folder)
    beside = target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}.tmp")
    try:
        beside.mkdir()
        write_files([(beside / name, content) for name, content in files.items()])
        os.rename(beside, target)
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError("output folder", str(folder), f"cannot be written: {reason}") from error
    finally:
        with contextlib.suppress(OSError, ValueError):
            shutil.rmtree(beside)


def read_record(folder: str | Path) -> CaseRecord:
    """Read the record of an exported folder.

    Raises:
      InputError: there is none, or it is damaged.
    """
    path = Path(folder) / RECORD_FILE
    try:
        return msgspec.json.decode(read_text(path), type=CaseRecord)
    except msgspec.MsgspecError as error:
        raise InputError("record", str(path), f"is damaged: {error}") from None


def read_text(path: str | Path) -> str:
    """Read a text file.

    Raises:
      InputError: it cannot be read, is no ordinary file, or is no UTF-8 text.
    """
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError:
        raise InputError("file", str(path), "must be UTF-8 text") from None


def read_bytes(path: str | Path) -> bytes:
    """Read a file.

    Raises:
      InputError: it cannot be read, or is no ordinary file.
    """
    try:
        return read_regular(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError("file", str(path), f"cannot be read: {reason}") from None
