"""Workload manifests: same workload, same bytes; any change of content is seen."""

import hashlib
import json
import os

import numpy as np
import pytest

from reference.config import EPConfig, ExpertMap
from reference.errors import ConfigError
from reference.routing.files import read_routing, write_routing
from reference.routing.generate import generate_topk
from reference.routing.manifest import (
    Workload,
    manifest_bytes,
    parse_manifest,
    read_manifest,
    routing_digest,
    workload_of_routing,
    write_manifest,
)
from reference.topk import TopK

CONFIG = EPConfig(ep_size=2, num_experts=8, num_topk=2, hidden=7168, num_max_tokens_per_rank=16)
REDUNDANT = EPConfig(
    ep_size=2,
    num_experts=4,
    num_topk=2,
    hidden=7168,
    num_max_tokens_per_rank=16,
    expert_map=ExpertMap(expert_ranks=(0, 0, 1, 1), logical_ids=(0, 1, 2, 0)),
)
PLAIN = Workload(config=CONFIG, tokens_per_rank=(16, 15), routing="zipf:1.1", seed=7, masked_ratio=0.1)

# The format's definition written out: sorted keys, no spaces, floats in their shortest form.
GOLDEN_TEXT = (
    '{"format":"epsim-workload","version":1,"workload":{"config":{"ep_size":2,"expert_alignment":1,'
    '"expert_map":null,"hidden":7168,"num_experts":8,"num_max_tokens_per_rank":16,"num_topk":2},'
    '"digest":null,"dispatch_dtype":"fp8","loads":null,"masked_ratio":0.1,"replica_rule":"token",'
    '"routing":"zipf:1.1","seed":7,"tokens_per_rank":[16,15]}}'
)
GOLDEN = "sha256:bf86dd06f85212e98596cbabc253fd23b46bbb563741f80776364d101d5f44fb"


def test_fingerprint_is_the_golden_one():
    assert PLAIN.fingerprint == GOLDEN == "sha256:" + hashlib.sha256(GOLDEN_TEXT.encode()).hexdigest()


WORKLOADS = [
    PLAIN,
    Workload(
        config=REDUNDANT, tokens_per_rank=(3, 0), routing="loads", loads=(1, 2.5, 3), replica_rule="source"
    ),
    Workload(config=CONFIG, tokens_per_rank=(1, 1), dispatch_dtype="bf16"),
    workload_of_routing(CONFIG, generate_topk(CONFIG, "uniform", tokens_per_rank=4)),
]


@pytest.mark.parametrize("workload", WORKLOADS)
def test_manifest_round_trips_in_bytes(tmp_path, workload):
    write_manifest(tmp_path / "w.json", workload)
    back = read_manifest(tmp_path / "w.json")
    assert back == workload
    assert manifest_bytes(back) == (tmp_path / "w.json").read_bytes()
    assert manifest_bytes(back).isascii()


def test_two_ways_to_write_one_workload_give_one_fingerprint():
    other = Workload(
        config=EPConfig(**{**vars(CONFIG), "hidden": np.int64(7168)}),
        tokens_per_rank=(16, 15),
        routing=" zipf:1.10",
        seed=7,
        masked_ratio=0.1,
    )
    assert other.fingerprint == PLAIN.fingerprint
    whole = Workload(config=CONFIG, tokens_per_rank=(1, 1), masked_ratio=0)
    assert whole.fingerprint == Workload(config=CONFIG, tokens_per_rank=(1, 1), masked_ratio=0.0).fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"tokens_per_rank": (16, 14)},
        {"routing": "zipf:1.2"},
        {"seed": 8},
        {"masked_ratio": 0.2},
        {"replica_rule": "source"},
        {"dispatch_dtype": "bf16"},
        {"config": EPConfig(**{**vars(CONFIG), "expert_alignment": 128})},
        {"config": EPConfig(**{**vars(CONFIG), "expert_map": ExpertMap(expert_ranks=(0, 1) * 4)})},
    ],
)
def test_every_field_changes_the_fingerprint(change):
    fields = {name: getattr(PLAIN, name) for name in PLAIN.__struct_fields__}
    assert Workload(**fields | change).fingerprint != PLAIN.fingerprint


@pytest.mark.parametrize("workload", WORKLOADS[:3])
def test_manifest_is_enough_to_sample_the_same_routing(workload):
    first, again = workload.topk(), parse_manifest(manifest_bytes(workload)).topk()
    assert routing_digest(first) == routing_digest(again)
    assert first.tokens_per_rank == workload.tokens_per_rank


def test_file_workload_says_how_to_get_its_routing():
    with pytest.raises(ConfigError, match="routing is 'file': read the file and compare its routing_digest"):
        WORKLOADS[3].topk()


def test_digest_does_not_depend_on_the_file_format(tmp_path):
    topk = generate_topk(CONFIG, "uniform", tokens_per_rank=5, with_weights=True)
    digests = {routing_digest(topk)}
    for suffix in (".safetensors", ".npz"):
        write_routing(tmp_path / f"r{suffix}", topk)
        digests.add(routing_digest(read_routing(tmp_path / f"r{suffix}", CONFIG)))
    assert len(digests) == 1


def test_digest_sees_every_difference():
    rows = np.array([[0, 1], [2, 3]], dtype=np.int64)
    weights = np.ones((2, 2), dtype=np.float32)
    base = {"num_experts": 4, "topk_idx": (rows, rows[:0])}
    variants = [
        base,
        base | {"num_experts": 5},
        base | {"topk_idx": (rows[:0], rows)},
        base | {"topk_idx": (rows[:1], rows[1:])},
        base | {"topk_idx": (rows[:, ::-1], rows[:0])},
        base | {"topk_idx": (rows.reshape(4, 1), rows.reshape(4, 1)[:0])},
        base | {"topk_weights": (weights, weights[:0])},
        base | {"topk_weights": (weights * 2, weights[:0])},
        base | {"id_space": "logical"},
    ]
    assert len({routing_digest(TopK(**variant)) for variant in variants}) == len(variants)


def edited(**changes):
    """Manifest bytes of PLAIN with changes at the top, in the workload or in the config."""
    table = json.loads(manifest_bytes(PLAIN))
    for path, value in changes.items():
        *places, last = path.split("__")
        inner = table
        for place in places:
            inner = inner[place]
        if value is None:
            del inner[last]
        else:
            inner[last] = value
    return json.dumps(table).encode()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"{", "manifest is 'not JSON'"),
        (b"[" * 100_000, "manifest is 'not JSON'"),
        (b"[]", "must be 'epsim-workload'"),
        (edited(format="trace"), "format is 'trace': must be 'epsim-workload'"),
        (edited(version=2), "version is 2: this version reads 1; write the manifest again"),
        (edited(fingerprint="sha256:0"), "fingerprint is 'sha256:0': the content has sha256:"),
        (edited(workload__seed=8), "it was changed after it was written"),
        (edited(workload__seed=-1), "seed is -1: must be a whole number of at least 0"),
        (edited(workload__seed="7"), "Expected `int`, got `str` - at `\\$.seed`"),
        (edited(workload__colour="red"), "unknown field `colour`"),
        (edited(workload__routing="zopf"), "routing is 'zopf': must be one of"),
        (edited(workload__loads=[1, 2]), "loads is 'zipf:1.1': a histogram belongs to routing 'loads'"),
        (edited(workload__digest="x"), "digest is 'zipf:1.1': a digest belongs to routing 'file'"),
        (edited(workload__config__ep_size=3), "num_experts is 8: ep_size 3 must divide it"),
        (edited(workload__config__hidden=None), "missing required field `hidden`"),
        (edited(workload__dispatch_dtype="int8"), "Invalid enum value 'int8'"),
        (edited(workload__tokens_per_rank=[1]), "tokens_per_rank is '1 counts': ep_size is 2"),
        (edited(workload=None), "Expected `object`, got `null`"),
    ],
)
def test_bad_manifest_is_refused(tmp_path, raw, message):
    (tmp_path / "w.json").write_bytes(raw)
    with pytest.raises(ConfigError, match=message) as error:
        read_manifest(tmp_path / "w.json")
    assert str(error.value).startswith(str(tmp_path / "w.json"))
    assert "\n" not in str(error.value)


def test_missing_manifest_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_manifest(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"replica_rule": "best"}, "replica_rule is 'best'"),
        ({"dispatch_dtype": "fp4"}, "dispatch_dtype is 'fp4': must be fp8 or bf16"),
        ({"masked_ratio": 2}, "masked_ratio is 2"),
        ({"routing": "loads"}, "a histogram belongs to routing 'loads'"),
        ({"routing": "file"}, "a digest belongs to routing 'file'"),
        ({"routing": "file", "digest": "md5:0"}, "digest is 'md5:0': must be sha256: and 64 hex digits"),
        ({"routing": "loads", "loads": (1.0, float("nan"))}, "loads is '2 experts': the group has 8"),
        ({"routing": "loads", "loads": (1.0,) * 7 + (float("inf"),)}, r"loads\[7\] is inf"),
    ],
)
def test_bad_workload_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        Workload(**{"config": CONFIG, "tokens_per_rank": (1, 1)} | change)


def test_a_fifo_is_no_manifest(tmp_path):
    """It is refused before it is opened, which would wait for a writer."""
    os.mkfifo(tmp_path / "w.json")
    with pytest.raises(ConfigError, match=r"^manifest is '.*w.json': cannot be read \(Is a FIFO or device"):
        read_manifest(tmp_path / "w.json")
    with pytest.raises(ConfigError, match=r"cannot be read \(embedded null byte\)"):
        read_manifest("a\0b")
