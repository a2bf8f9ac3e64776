"""Files that epsim must refuse, each wrong in one way: a group of 4 ranks, 8 experts, top-2, 3 tokens."""

import json
import os
import pickle

import numpy as np
from safetensors.numpy import save

from epsim.platform.profile import hardware_profile, profile_toml

R, T, K, E = 4, 3, 2, 8
GROUP = ["--ep", str(R), "--experts", str(E), "--topk", str(K), "--tokens", str(T)]


def good_ids():
    """[R, T, K] valid expert ids."""
    return np.array([[[(r + t) % E, (r + t + 1) % E] for t in range(T)] for r in range(R)], dtype=np.int64)


def changed(place, value):
    """Return valid ids with one of them replaced."""
    ids = good_ids()
    ids[place] = value
    return ids


def safetensors_of(**arrays):
    """Bytes of a .safetensors file."""
    return save({name: np.ascontiguousarray(array) for name, array in arrays.items()})


def nan_weights():
    """[R, T, K] weights with one NaN."""
    weights = np.full((R, T, K), 0.5, dtype=np.float32)
    weights[1, 2, 0] = np.nan
    return weights


def write_routing_files(folder):
    """Write routing files and folders, each with one fault."""
    objects = np.array([{"run": "code"}, None], dtype=object)
    np.save(folder / "objects.npy", objects, allow_pickle=True)
    np.savez(folder / "objects.npz", topk_idx_0=objects)
    (folder / "raw_pickle.npy").write_bytes(pickle.dumps(good_ids().tolist()))
    (folder / "empty.npy").write_bytes(b"")
    whole = safetensors_of(topk_idx=good_ids())
    (folder / "cut.safetensors").write_bytes(whole[:-16])
    (folder / "head.safetensors").write_bytes(b"\xff" * 9)
    np.savez(folder / "whole.npz", topk_idx=good_ids())
    (folder / "cut.npz").write_bytes((folder / "whole.npz").read_bytes()[:-40])
    (folder / "whole.npz").unlink()
    np.save(folder / "float.npy", good_ids().astype(np.float64))
    np.save(folder / "unsigned.npy", good_ids().astype(np.uint32))
    np.save(folder / "beyond.npy", changed((1, 2, 0), E))
    np.save(folder / "negative.npy", changed((1, 2, 0), -2))
    np.save(folder / "repeated.npy", changed((2, 0), 5))
    np.save(folder / "two_axes.npy", good_ids()[0])
    np.save(folder / "three_ranks.npy", good_ids()[:3])
    np.save(folder / "top3.npy", np.concatenate([good_ids(), good_ids()[:, :, :1] - 2], axis=2) % E)
    (folder / "nan.safetensors").write_bytes(safetensors_of(topk_idx=good_ids(), topk_weights=nan_weights()))
    (folder / "shape.safetensors").write_bytes(
        safetensors_of(topk_idx=good_ids(), topk_weights=nan_weights()[:, :, :1])
    )
    (folder / "names.safetensors").write_bytes(safetensors_of(ids=good_ids()))
    for name, ranks in (("gap", (0, 1, 3)), ("three", (0, 1, 2))):
        (folder / name).mkdir()
        for rank in ranks:
            np.save(folder / name / f"rank{rank}.npy", good_ids()[rank])
    (folder / "nothing").mkdir()


def write_loads(folder):
    """Write load histograms, each with one fault."""
    np.save(folder / "loads.npy", -np.ones(E))
    (folder / "short.csv").write_text("load\n1\n2\n")
    (folder / "words.csv").write_text("load\n1\ntwo\n")
    (folder / "nan.json").write_text('{"loads": [1, 2, 3, 4, 5, 6, 7, "8"]}')
    (folder / "cut.json").write_text('{"loads": [1, 2')
    (folder / "zero.toml").write_text(f"loads = {[0.0] * E}\n")


def write_profiles(folder):
    """Write profile files, each with one fault."""
    good = profile_toml(hardware_profile("950dt"))
    (folder / "broken.toml").write_text(good.replace("=", "", 1))
    (folder / "key.toml").write_text('bse = "950dt"\n')
    (folder / "loop.toml").write_text('base = "loop.toml"\n')
    (folder / "parameter.toml").write_text(good.replace("[parameters.hbm_rate]", "[parameters.hbm_raet]"))
    (folder / "unsourced.toml").write_text('base = "950dt"\n[parameters.hbm_rate]\nvalue = "4TB/s"\n')
    (folder / "bare.toml").write_text(good.replace('"400GB/s"', "400", 1))
    (folder / "bytes.toml").write_text(good.replace('"400GB/s"', '"400GB"', 1))
    (folder / "kind.toml").write_text(good.replace('"hardware"', '"software"'))
    (folder / "latin.toml").write_bytes(b'name = "\xe9"')


def write_clusters(folder):
    """Write cluster and HCCL files, each with one fault."""
    for name, text in {
        "kind": 'kind = "ring"',
        "planes": 'kind = "ubl128"\nnum_npus = 8\nplanes = 0',
        "radix": 'kind = "ubl128"\nnum_npus = 128\nports_per_plane = 9',
        "rate": 'kind = "ubl128"\nport_rate = "-400Gbps"',
        "bare_rate": 'kind = "ubl128"\nport_rate = 400',
        "size_rate": 'kind = "ubl128"\nport_rate = "400GB"',
        "unknown": 'kind = "ubl128"\nplane = 8',
        "text": 'kind = "ubl128"\nnum_npus = "many"',
        "change": 'kind = "ubl128"\nnum_npus = 8\n[[changes]]\nfrom = "npu9"\nto = "sw0"\nfailed = true',
        "fan": 'kind = "mesh"\nnum_npus = 9',
    }.items():
        (folder / f"cluster_{name}.toml").write_text(text + "\n")
    (folder / "pickle.json").write_bytes(pickle.dumps({"version": "2.0"}))
    (folder / "ends.json").write_text('{"version": "2.0", "rank_list": [')
    (folder / "other.json").write_text('{"version": "2.0"}')
    table = {"version": "2.0", "rank_count": "2", "rank_list": [{"rank_id": 0}]}
    (folder / "ranks.json").write_text(json.dumps(table))


HEAD = "id,system,generation,topology,op,ep_size,tokens_per_rank,hidden,num_topk,num_experts,dtype,kernel,"
HEAD += "gb_per_s_min,gb_per_s_max,latency_us,metric,conditions,source,use\n"
ROW = "a,ubl128,Ascend 950DT,one,dispatch,8,4096,7168,6,256,fp8,high-throughput,370,375,,"
ROW += "logical GB/s incl. local rank,none,a test,calibrate\n"


def write_measurements(folder):
    """Write measurement files, each with one fault."""
    for name, text in {
        "no_column": (HEAD + ROW).replace("ep_size,", "ranks,"),
        "reversed": HEAD + ROW.replace("370,375", "375,370"),
        "negative": HEAD + ROW.replace("370,375", "-370,375"),
        "word": HEAD + ROW.replace("4096", "many"),
        "operation": HEAD + ROW.replace("dispatch", "scatter"),
        "metric": HEAD + ROW.replace("logical GB/s incl. local rank", "GB/s"),
        "twice": HEAD + ROW + ROW,
        "short": HEAD + "a,b\n",
        "empty": "",
        "nothing": HEAD + ROW.replace("370,375", ","),
    }.items():
        (folder / f"measured_{name}.csv").write_text(text)


def write_fifos(folder):
    """Make FIFOs, which nobody ever writes to, under names of every kind of input."""
    for name in ("fifo.npy", "fifo.npz", "fifo.safetensors", "fifo.csv", "fifo.json", "fifo.toml"):
        os.mkfifo(folder / name)
    (folder / "fifos").mkdir()
    os.mkfifo(folder / "fifos" / "rank0.npy")
    (folder / "text.npy").write_text("0 1\n2 3\n")


def write_all(folder):
    """Write every bad file."""
    writers = (write_routing_files, write_loads, write_profiles, write_clusters, write_measurements)
    for write in (*writers, write_fifos):
        write(folder)
