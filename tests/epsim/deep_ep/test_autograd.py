"""Gradients through dispatch and combine, and the example layer: exact where sums are, bounded elsewhere.

n tokens, K top-k, H hidden, E experts.
"""

import pytest

pytest.importorskip("torch", reason="the drop-in for deep_ep needs torch")

import torch
import torch.distributed as dist

import epsim.deep_ep as deep_ep
from epsim.deep_ep.autograd import combine, dispatch
from epsim.deep_ep.errors import HostCheckError, PeerRefusedError, UnsupportedError
from examples.moe_layer import MoELayer, train
from tests.epsim.deep_ep.spawning import run_ranks

HIDDEN, TOKENS, TOPK = 256, 6, 2
BF16 = torch.bfloat16


def small_integers(shape, seed, low=-2, high=3):
    """Return integers so small that every product and sum below is exact in bf16."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).float()


def group_inputs(num_ranks):
    """Return per rank (x [n, H], ids [n, K], weights [n, K]): small and exact; one token is masked."""
    inputs = []
    for rank in range(num_ranks):
        draw = torch.Generator().manual_seed(100 + rank)
        x = torch.zeros(TOKENS, HIDDEN)
        x[:, :4] = small_integers((TOKENS, 4), 10 + rank, -1, 2)
        ids = torch.stack([torch.randperm(2 * num_ranks, generator=draw)[:TOPK] for _ in range(TOKENS)])
        ids[1, 0], ids[2] = -1, -1
        weights = 2.0 ** -torch.randint(0, 3, (TOKENS, TOPK), generator=draw)
        inputs.append((x, ids, weights))
    return inputs


def dense(inputs, experts, upstream):
    """Return the gradients of x, weights and experts of a dense layer, token by token, in one process."""
    experts = experts.clone().requires_grad_()
    leaves = [(x.clone().requires_grad_(), w.clone().requires_grad_()) for x, _, w in inputs]
    total = torch.zeros(())
    for (x, weights), (_, ids, _), grad in zip(leaves, inputs, upstream, strict=True):
        for token in range(TOKENS):
            y = torch.zeros(HIDDEN)
            for k in range(TOPK):
                if ids[token, k] >= 0:
                    y = y + weights[token, k] * (x[token] @ experts[ids[token, k]])
            total = total + (y * grad[token]).sum()
    total.backward()
    return leaves, experts.grad


def exact_gradients(rank, num_ranks, expand, cpu_sync):
    inputs = group_inputs(num_ranks)
    upstream = [small_integers((TOKENS, HIDDEN), 50 + r, -1, 2) for r in range(num_ranks)]
    experts = torch.zeros(2 * num_ranks, HIDDEN, HIDDEN)
    experts[:, :4, :4] = small_integers((2 * num_ranks, 4, 4), 7, -1, 2)
    for grad in upstream:
        grad[:, 4:] = 0
    edition = "ascend" if expand else "nvidia"
    buffer = deep_ep.EPBuffer(dist.group.WORLD, 2**22, TOKENS, edition=edition)
    x, ids, weights = inputs[rank]
    x, weights = x.to(BF16).requires_grad_(), weights.clone().requires_grad_()
    own = experts[2 * rank : 2 * rank + 2].clone().requires_grad_()
    options = {"num_experts": 2 * num_ranks, "expert_alignment": 4, "do_cpu_sync": cpu_sync}
    if not expand:
        options |= {"do_expand": False, "expert_alignment": 1, "num_sms": 2}
    rows, row_weights, handle = dispatch(buffer, x, ids, weights, **options)
    y = local_experts(rows, row_weights, handle, own, ids, rank, expand)
    combined = combine(buffer, y, handle)
    combined.backward(upstream[rank].to(BF16))
    leaves, expert_grads = dense(inputs, experts, upstream)
    want_x, want_weights = leaves[rank]
    assert torch.equal(x.grad, want_x.grad.to(BF16))
    assert torch.equal(x.grad.float(), want_x.grad), "the case is exact, so nothing is rounded"
    assert torch.equal(weights.grad, want_weights.grad)
    assert torch.equal(own.grad, expert_grads[2 * rank : 2 * rank + 2])
    assert x.grad.abs().sum() > 0
    return True


def local_experts(rows, row_weights, handle, own, ids, rank, expand):
    """Return what two local experts make of the rows, weights applied."""
    if expand:
        ends = handle.psum_num_recv_tokens_per_expert.tolist()
        counts = handle.num_unaligned_recv_tokens_per_expert.tolist()
        out = torch.zeros(rows.shape, dtype=BF16)
        parts = []
        for weight, end, count in zip(own, ends, counts, strict=True):
            block = slice(end - count, end)
            parts.append((block, (rows[block].float() @ weight) * row_weights[block, None]))
        for block, part in parts:
            out = out.index_add(0, torch.arange(block.start, block.stop), part.to(BF16))
        return out
    real = int(handle.psum_num_recv_tokens_per_rank[-1])
    num_ranks = len(handle.psum_num_recv_tokens_per_rank)
    everyone = torch.stack([ids for _, ids, _ in group_inputs(num_ranks)]).reshape(-1, TOPK)
    choice = everyone[handle.recv_src_metadata[:real, 0].long()]
    y = torch.zeros(rows.shape[0], HIDDEN)
    for local, weight in enumerate(own):
        for k in range(TOPK):
            here = (choice[:, k] == 2 * rank + local).nonzero().flatten()
            part = (rows[here].float() @ weight) * row_weights[here, k, None]
            y = y.index_add(0, here, part)
    return y.to(BF16)


@pytest.mark.parametrize(("expand", "cpu_sync"), [(True, True), (True, False), (False, True), (False, False)])
def test_gradients_equal_those_of_a_dense_layer_where_sums_are_exact(expand, cpu_sync):
    """Of tokens, gate weights and experts, bit for bit; also with worst-case outputs full of poison."""
    assert run_ranks(exact_gradients, 2, expand, cpu_sync) == [True, True]


def single_reduction(rank, num_ranks):
    """Differentiate where combine takes no weights: detached ones are carried, others refused at once."""
    buffer = deep_ep.EPBuffer(
        dist.group.WORLD, 2**22, TOKENS, edition="nvidia", allow_multiple_reduction=False
    )
    x, ids, weights = group_inputs(num_ranks)[rank]
    x, options = x.to(BF16).requires_grad_(), {"num_experts": 2 * num_ranks, "expert_alignment": 4}
    rows, row_weights, handle = dispatch(buffer, x, ids, weights, **options)
    combine(buffer, rows * row_weights[:, None].to(BF16), handle).sum().backward()
    assert torch.equal(x.grad, (weights * (ids >= 0)).sum(dim=1, keepdim=True).to(BF16).expand(x.shape))
    needy = weights.clone().requires_grad_()
    with pytest.raises(
        (UnsupportedError, PeerRefusedError), match=r"topk_weights.requires_grad is True: exp"
    ):
        dispatch(buffer, x, ids, needy if rank else weights, **options)
    with torch.no_grad():
        assert torch.equal(dispatch(buffer, x, ids, needy, **options)[1], row_weights)
    rows, row_weights, handle = dispatch(buffer, x, ids, needy, num_experts=4, do_expand=False)
    (rows.float().sum() + row_weights.sum()).backward()
    return needy.grad is not None


def test_weights_without_a_gradient_pass_through_a_single_reduction():
    """There the library's combine has no way home for one, which is said before anything is sent."""
    assert run_ranks(single_reduction, 2) == [True, True]


def zero_rows(rank, num_ranks, expand):
    edition = "ascend" if expand else "nvidia"
    buffer = deep_ep.EPBuffer(dist.group.WORLD, 2**22, TOKENS, edition=edition)
    x, ids, weights = group_inputs(num_ranks)[rank]
    options = {"num_experts": 2 * num_ranks, "do_cpu_sync": False, "do_expand": expand}
    options |= {"expert_alignment": 4} if expand else {"num_sms": 2}
    rows, row_weights, handle = dispatch(buffer, x.to(BF16).requires_grad_(), ids, weights, **options)
    real = int(
        (handle.psum_num_recv_tokens_per_expert if expand else handle.psum_num_recv_tokens_per_rank)[-1]
    )
    assert 0 < real < rows.shape[0], "the worst case has more rows"
    assert not rows[real:].any()
    assert not row_weights[real:].any()
    expert = torch.eye(HIDDEN, dtype=BF16, requires_grad=True)
    combine(buffer, rows @ expert, handle).float().sum().backward()
    assert expert.grad.isfinite().all()
    return True


@pytest.mark.parametrize("expand", [True, False])
def test_rows_past_the_last_one_are_zero(expand):
    """Else a product of all rows has undefined weight gradients."""
    assert run_ranks(zero_rows, 2, expand) == [True, True]


def second_derivatives(rank, num_ranks, with_weights):
    buffer = deep_ep.EPBuffer(dist.group.WORLD, 2**22, TOKENS)
    x, ids, weights = group_inputs(num_ranks)[rank]
    x = x.to(BF16).requires_grad_()
    options = {"num_experts": 2 * num_ranks}
    rows, row_weights, handle = dispatch(buffer, x, ids, weights if with_weights else None, **options)
    combined = combine(buffer, rows**3 * (row_weights[:, None].to(BF16) if with_weights else 1), handle)
    (grad,) = torch.autograd.grad((combined.float() ** 2).sum(), x, create_graph=True)
    assert grad.abs().sum() > 0
    with pytest.raises(UnsupportedError, match="cannot be differentiated again"):
        grad.float().pow(2).sum().backward(retain_graph=True)
    with pytest.raises(UnsupportedError, match="cannot be differentiated again"):
        torch.autograd.grad(grad.float().pow(2).sum() + x.float().sum(), x)
    return True


@pytest.mark.parametrize("with_weights", [False, True])
def test_second_derivatives_are_refused(with_weights):
    """They would be missing without a word: a penalty on a gradient would train nothing."""
    assert run_ranks(second_derivatives, 2, with_weights) == [True, True]


def not_rows(rank, num_ranks):
    """Give codes with scales on one rank, and a tuple to combine; the buffer works afterwards."""
    buffer = deep_ep.EPBuffer(dist.group.WORLD, 2**22, TOKENS, num_cpu_timeout_secs=20)
    x, ids, _ = group_inputs(num_ranks)[rank]
    x, codes = x.to(BF16), x.to(torch.float8_e4m3fn)
    scales = torch.ones(TOKENS, 4, dtype=torch.int16)
    kinds = (PeerRefusedError, UnsupportedError)
    with pytest.raises(kinds[rank], match="x is 'a tuple': gradients flow through bf16 rows only"):
        dispatch(buffer, (codes, scales) if rank else x, ids, num_experts=4)
    rows, _, handle = dispatch(buffer, x, ids, num_experts=4)
    with pytest.raises((PeerRefusedError, HostCheckError)[rank], match="x is 'tuple': must be a tensor"):
        combine(buffer, (rows, scales) if rank else rows, handle)
    return len(combine(buffer, rows, handle))


def test_fp8_is_refused_before_anything_is_sent():
    """By name, and on every rank."""
    assert run_ranks(not_rows, 2) == [TOKENS] * 2


def layer_gradients(rank, num_ranks):
    """Compare one step of the example with a dense layer in float32, within the derived bound."""
    torch.manual_seed(3)
    buffer = deep_ep.EPBuffer(dist.group.WORLD, 2**24, 32)
    layer = MoELayer(buffer, hidden=HIDDEN, num_experts=2 * num_ranks, num_topk=TOPK)
    torch.manual_seed(4)
    every = torch.randn(2 * num_ranks, HIDDEN, HIDDEN) / HIDDEN**0.5
    layer.experts.data.copy_(every[2 * rank : 2 * rank + 2])
    x = [torch.randn(16, HIDDEN).to(BF16) for _ in range(num_ranks)][rank]
    out = layer(x)
    scores = torch.softmax(layer.gate(x.float()), dim=-1)
    weights, ids = scores.topk(TOPK, dim=-1)
    terms = torch.stack(
        [
            weights[:, k, None]
            * torch.nn.functional.silu(torch.einsum("nh,nhj->nj", x.float(), every[ids[:, k]]))
            for k in range(TOPK)
        ]
    )
    # Each term is rounded to bf16 once, their partial sum on a rank once, and the final sum once: 3 roundings
    # of relative size 2^-8; the products may be summed in another order, H fp32 roundings at most.
    u, steps = 2.0**-8, 3
    slack = HIDDEN * 2.0**-24 * torch.einsum("nh,nkhj->nkj", x.float().abs(), every[ids].abs()).sum(dim=1)
    bound = steps * u / (1 - steps * u) * terms.abs().sum(dim=0) + 2 * slack
    assert (out.float() - terms.sum(dim=0)).abs().le(bound).all()
    assert bound.max() < 0.1
    return True


def test_the_example_layer_gives_what_a_dense_layer_gives():
    """Every element within the bound of its roundings."""
    assert run_ranks(layer_gradients, 2) == [True, True]


def training(rank, num_ranks):
    return train(dist.group.WORLD, num_steps=20)


def test_the_example_layer_trains():
    """The loss falls below half, and all ranks see the same."""
    losses = run_ranks(training, 2)
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0] / 2
