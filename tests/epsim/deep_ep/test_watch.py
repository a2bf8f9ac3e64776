"""A write to a tensor that a handle or a transfer still needs is noticed; a write beside it is none."""

import pytest

pytest.importorskip("torch", reason="the drop-in for deep_ep needs torch")

import torch
import torch.distributed as dist

import epsim.deep_ep as deep_ep
from epsim.deep_ep.errors import StaleHandleError, UndefinedError
from tests.epsim.deep_ep.spawning import run_ranks

MIB2 = 2 * 2**20
LATER = {"async_with_compute_stream": True, "defer_epilogue": True}
NAMES = ("x", "topk_idx", "topk_weights")


def microbatches():
    """Return (x [2, 4, 256], ids [2, 4, 2], weights [2, 4, 2]) of two microbatches, each in one memory."""
    ids = torch.arange(16).reshape(2, 4, 2) % 8
    return torch.ones(2, 4, 256).bfloat16(), ids, torch.ones(2, 4, 2)


def ways_to_write(tensor, value):
    """Return writes of one element: one that torch counts and two that it does not."""
    where = (0,) * tensor.dim()

    def by_numpy():
        deep_ep.arrays.array_of(tensor)[where] = value

    return lambda: tensor.__setitem__(where, value), by_numpy, lambda: tensor.data.__setitem__(where, value)


def handles(rank, num_ranks):
    """Write beside the routing of a handle, then into it."""
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8)
    for way in range(3):
        x, ids, weights = microbatches()
        recv_x, _, _, handle, _ = buffer.dispatch(x[0], ids[0], weights[0], num_experts=8, do_expand=True)
        ids[1] = 0
        combined = buffer.combine(recv_x, handle)[0]
        buffer.dispatch(x[0], handle=handle, do_expand=True)
        ways_to_write(ids[0], 7)[way]()
        with pytest.raises(StaleHandleError, match="written to after dispatch"):
            buffer.combine(recv_x, handle)
        ways_to_write(ids[0], 0)[way]()
        assert torch.equal(buffer.combine(recv_x, handle)[0], combined)
    return True


def deferred(rank, num_ranks):
    """Write beside what a deferred dispatch reads, then into it; NumPy's writes to rows are not noticed."""
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8)
    for number, name in enumerate(NAMES):
        for way in range(1 if name == "x" else 3):
            given = microbatches()
            options = dict(zip(NAMES, (tensor[0] for tensor in given), strict=True))
            for is_beside in (True, False):
                event = buffer.dispatch(**options, num_experts=8, do_expand=True, **LATER)
                ways_to_write(given[number][int(is_beside)], 7)[way]()
                if is_beside:
                    assert len(event.wait()) == 4
                    continue
                with pytest.raises(UndefinedError, match=f"{name} is 'written to': a deferred dispatch"):
                    event.wait()
    return True


def combines(rank, num_ranks):
    """As `deferred`, for the rows and weights of a combine."""
    buffer = deep_ep.EPBuffer(dist.group.WORLD, MIB2, 8)
    x, ids, weights = (tensor[0] for tensor in microbatches())
    recv_x, _, recv_weights, handle, _ = buffer.dispatch(x, ids, weights, num_experts=8, do_expand=True)
    pair, pair_weights = torch.stack([recv_x] * 2), torch.stack([recv_weights] * 2)
    for name, tensor, way in (
        ("x", pair, 0),
        ("topk_weights", pair_weights, 0),
        ("topk_weights", pair_weights, 1),
    ):
        event = buffer.combine(pair[0], handle, pair_weights[0], **LATER)
        ways_to_write(tensor[1], 7)[way]()
        assert len(event.wait()) == 2
        event = buffer.combine(pair[0], handle, pair_weights[0], **LATER)
        ways_to_write(tensor[0], 5 + way)[way]()
        with pytest.raises(UndefinedError, match=f"{name} is 'written to': a deferred combine"):
            event.wait()
    return True


@pytest.mark.parametrize("job", [handles, deferred, combines])
def test_a_write_is_noticed_where_it_matters_and_only_there(job):
    """Views of one memory share torch's count of writes, and NumPy's writes do not count."""
    assert run_ranks(job, 2) == [True, True]
