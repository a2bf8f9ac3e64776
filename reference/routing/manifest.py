"""One byte-stable description of a workload, with a fingerprint: same workload, same bytes, any machine.

R ranks, E experts.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from reference.config import EPConfig, whole_number
from reference.errors import ConfigError
from reference.experts.replicas import REPLICA_RULES, ReplicaRule
from reference.routing.expected import check_masked_ratio, check_tokens_per_rank
from reference.routing.files import write_atomically
from reference.routing.generate import check_loads, generate_topk, parse_routing, sample_loads
from reference.routing.readable import read_regular
from reference.topk import TopK

FORMAT = "epsim-workload"
VERSION = 1
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
DispatchDtype = Literal["fp8", "bf16"]


class Workload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=False):
    """Everything that decides which token goes where, and in which number format.

    Args:
      config: the group, expert map included.
      tokens_per_rank: [R].
      routing: text of `parse_routing`, "loads" (sampled from `loads`) or "file" (`digest` says which).
      seed: of the generator; 0 for a file.
      masked_ratio: of the generator.
      replica_rule: how redundant copies are chosen.
      loads: [E] histogram of routing "loads"; else None.
      digest: `routing_digest` of routing "file"; else None.
      dispatch_dtype: fp8 or bf16; combine is always bf16.

    Raises:
      ConfigError: a field is out of range, or does not belong to this kind of routing.
    """

    config: EPConfig
    tokens_per_rank: tuple[int, ...]
    routing: str = "uniform"
    seed: int = 0
    masked_ratio: float = 0.0
    replica_rule: ReplicaRule = "token"
    loads: tuple[float, ...] | None = None
    digest: str | None = None
    dispatch_dtype: DispatchDtype = "fp8"

    def __post_init__(self) -> None:
        """Check the fields and bring the routing's text to its one form."""
        check_tokens_per_rank(self.config, self.tokens_per_rank)
        whole_number("seed", self.seed, 0)
        if self.replica_rule not in REPLICA_RULES:
            raise ConfigError("replica_rule", self.replica_rule, f"must be one of {', '.join(REPLICA_RULES)}")
        if self.dispatch_dtype not in ("fp8", "bf16"):
            raise ConfigError("dispatch_dtype", self.dispatch_dtype, "must be fp8 or bf16")
        # An int and a float of one value must not give two fingerprints.
        msgspec.structs.force_setattr(self, "masked_ratio", float(check_masked_ratio(self.masked_ratio)))
        if (self.loads is not None) != (self.routing == "loads"):
            raise ConfigError("loads", self.routing, "a histogram belongs to routing 'loads' and to no other")
        if (self.digest is not None) != (self.routing == "file"):
            raise ConfigError("digest", self.routing, "a digest belongs to routing 'file' and to no other")
        if self.loads is not None:
            checked = check_loads(self.config, self.loads)
            msgspec.structs.force_setattr(self, "loads", tuple(checked.tolist()))
        if self.digest is not None and not _DIGEST.fullmatch(self.digest):
            raise ConfigError("digest", self.digest, "must be sha256: and 64 hex digits")
        if self.routing not in ("loads", "file"):
            msgspec.structs.force_setattr(self, "routing", parse_routing(self.routing).text)

    @property
    def fingerprint(self) -> str:
        """`sha256:` and 64 hex digits over the canonical bytes."""
        return "sha256:" + hashlib.sha256(_canonical(_content(self))).hexdigest()

    def topk(self) -> TopK:
        """Sample the routing that this describes.

        Raises:
          ConfigError: it describes a file, whose arrays are not in the manifest.
        """
        if self.routing == "file":
            raise ConfigError("routing", "file", "read the file and compare its routing_digest")
        options: dict[str, Any] = {
            "tokens_per_rank": self.tokens_per_rank,
            "seed": self.seed,
            "masked_ratio": self.masked_ratio,
            "replica_rule": self.replica_rule,
        }
        if self.loads is not None:
            return sample_loads(self.config, self.loads, **options)
        return generate_topk(self.config, self.routing, **options)


def workload_of_routing(config: EPConfig, topk: TopK, *, dispatch_dtype: DispatchDtype = "fp8") -> Workload:
    """Describe a routing that was read from a file by the digest of its content.

    Raises:
      ConfigError: the routing does not fit the config.
    """
    topk.check_against(config)
    return Workload(
        config=config,
        tokens_per_rank=topk.tokens_per_rank,
        routing="file",
        digest=routing_digest(topk),
        dispatch_dtype=dispatch_dtype,
    )


def routing_digest(topk: TopK) -> str:
    """Return `sha256:` and 64 hex digits over ids and weights, however they were stored.

    Hashed: one line of JSON with the sizes, then per rank the ids as little-endian int64 rows and the
    weights, if any, as little-endian float32 rows.
    """
    head = {
        "id_space": topk.id_space,
        "num_experts": topk.num_experts,
        "num_topk": topk.num_topk,
        "tokens_per_rank": topk.tokens_per_rank,
        "weights": topk.topk_weights is not None,
    }
    state = hashlib.sha256(_canonical(head) + b"\n")
    for rank, idx in enumerate(topk.topk_idx):
        state.update(np.ascontiguousarray(idx, dtype="<i8").data)
        if topk.topk_weights is not None:
            state.update(np.ascontiguousarray(topk.topk_weights[rank], dtype="<f4").data)
    return "sha256:" + state.hexdigest()


def manifest_bytes(workload: Workload) -> bytes:
    """Return the manifest as ASCII JSON with sorted keys; equal workloads give equal bytes."""
    whole = _content(workload) | {"fingerprint": workload.fingerprint}
    return json.dumps(whole, sort_keys=True, indent=1, allow_nan=False).encode("ascii") + b"\n"


def write_manifest(path: str | Path, workload: Workload) -> None:
    """Write the manifest whole or not at all."""
    write_atomically(path, manifest_bytes(workload))


def read_manifest(path: str | Path) -> Workload:
    """Read a manifest and check its fingerprint.

    Raises:
      ConfigError: names the file and the rule: not JSON, another format or version, a field out of range,
        or a fingerprint that does not belong to the content.
    """
    try:
        raw = read_regular(path)
    except OSError as error:
        raise ConfigError("manifest", str(path), f"cannot be read ({error.strerror})") from None
    try:
        return parse_manifest(raw)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.field}", error.value, error.rule) from None


def parse_manifest(raw: bytes) -> Workload:
    """Return the workload of manifest bytes; see `read_manifest`."""
    try:
        table = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ConfigError("manifest", "not JSON", str(error)) from None
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        raise ConfigError("format", getattr(table, "get", str)("format"), f"must be {FORMAT!r}")
    if table.get("version") != VERSION:
        rule = f"this version reads {VERSION}; write the manifest again from its workload"
        raise ConfigError("version", table.get("version"), rule)
    try:
        workload = msgspec.convert(table.get("workload"), Workload)
    except msgspec.ValidationError as error:
        # msgspec wraps our own refusal; its text is the sentence we want.
        cause = error.__cause__
        if isinstance(cause, ConfigError):
            raise cause from None
        raise ConfigError("workload", "unreadable", str(error)) from None
    if table.get("fingerprint") != workload.fingerprint:
        rule = f"the content has {workload.fingerprint}; it was changed after it was written"
        raise ConfigError("fingerprint", table.get("fingerprint"), rule)
    return workload


def _content(workload: Workload) -> dict[str, Any]:
    return {"format": FORMAT, "version": VERSION, "workload": msgspec.to_builtins(workload)}


def _canonical(table: dict[str, Any]) -> bytes:
    """One line of ASCII JSON, sorted keys; floats in Python's shortest form, which is the same anywhere."""
    return json.dumps(table, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
