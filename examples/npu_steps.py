"""First steps on Ascend 950s with our kernels, one at a time; docs/hardware-status.md says what to look for.

    python examples/npu_steps.py missing
    python examples/npu_steps.py runtime
    python examples/npu_steps.py kernels
    torchrun --nproc-per-node 2 examples/npu_steps.py domain
    torchrun --nproc-per-node 2 examples/npu_steps.py dispatch
    torchrun --nproc-per-node 8 examples/npu_steps.py conform

Exit code 0 = the step is fine, 1 = it is not, 3 = this machine lacks something, which is named.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np

from native.arguments import KERNELS, RuntimeConfig
from native.backends.npu import npu_backend
from native.backends.npu_kernels import KernelCache
from native.backends.protocol import BufferSpec, CombineCall, DispatchCall, Schedule
from native.backends.torch_npu import what_is_missing
from native.errors import CompileError, NativeEnvironmentError
from native.runtime import DeviceFailure, Runtime, build_runtime
from native.settings import settings_from
from reference.combine import combine
from reference.config import EPConfig
from reference.order import library_order
from reference.topk import TopK

TOKENS, HIDDEN, TOPK, EXPERTS_PER_RANK = 128, 1024, 4, 8
SETTINGS = settings_from(os.environ)


def missing() -> int:
    """Name the first thing that is missing."""
    sentence = what_is_missing(SETTINGS)
    print(sentence or "nothing is missing")
    return 3 if sentence else 0


def runtime() -> int:
    """Compile the host runtime against the installed CANN, load it, ask the device."""
    path = build_runtime(SETTINGS)
    print(path)
    print("vector cores, bytes of unified buffer:", *Runtime(path).limits())
    return 0


def kernels() -> int:
    """Compile every kernel for one shape; nothing is launched."""
    cache = KernelCache(SETTINGS, Runtime(build_runtime(SETTINGS)))
    config = RuntimeConfig(
        timeout_cycles=10**11, num_ranks=2, num_experts=16, num_topk=4, num_max_tokens=128,
        expert_alignment=1, num_aivs=64, num_threads=512, hidden=1024, payload_bytes=2048,
        ub_bytes=216 << 10, sq_depth=32768, cpu_sync=1,
    )  # fmt: skip
    for name in KERNELS:
        print(name, cache.compile(name, config))
    return 0


def domain() -> int:
    """Open and close a buffer three times."""
    backend = npu_backend(SETTINGS)
    for turn in range(3):
        backend.open(spec(backend.device.num_ranks), Schedule()).close()
        print(f"rank {backend.device.rank}: buffer {turn} opened and closed")
    return 0


def dispatch() -> int:
    """Run dispatch and combine, and let the reference combine the same rows by the device's own handles."""
    backend = npu_backend(SETTINGS)
    ranks = backend.device.num_ranks
    config = EPConfig(
        ep_size=ranks, num_experts=EXPERTS_PER_RANK * ranks, num_topk=TOPK, num_max_tokens_per_rank=TOKENS,
        hidden=HIDDEN,
    )  # fmt: skip
    draw = np.random.default_rng(0)
    x = [draw.normal(size=(TOKENS, HIDDEN)).astype(ml_dtypes.bfloat16) for _ in range(ranks)]
    ids = [draw.random((TOKENS, config.num_experts)).argsort(axis=1)[:, :TOPK] for _ in range(ranks)]
    topk = TopK(num_experts=config.num_experts, topk_idx=tuple(ids))
    session = backend.open(spec(ranks), Schedule())
    done = session.dispatch(DispatchCall(config=config, topk=topk, x=x))
    y = [one.recv_x for one in done.received]
    got = session.combine(done, CombineCall(y=y))
    session.close()
    order = library_order(expand=True, allow_multiple_reduction=True, is_hybrid=False)
    want = combine(done.handles, y, order=order)
    wrong = [r for r in range(ranks) if got[r].combined_x.tobytes() != want[r].combined_x.tobytes()]
    print(
        f"rank {backend.device.rank}: {'all ranks equal the reference' if not wrong else f'wrong: {wrong}'}"
    )
    return int(bool(wrong))


def conform() -> int:
    """Run the conformance suite: every process draws the same programs, and each runs its own rank."""
    from epsim.conform import run_conformance
    from epsim.conform.outcome import PROFILES
    from epsim.report.conform import outcome_text

    backend = npu_backend(SETTINGS)
    outcome = run_conformance(backend, replace(PROFILES["quick"], max_ranks=backend.device.num_ranks))
    if backend.device.rank == 0:
        print(outcome_text(outcome))
    return int(not outcome.is_passed)


def spec(num_ranks: int) -> BufferSpec:
    """Return the buffer of these steps."""
    return BufferSpec(
        num_ranks=num_ranks, num_max_tokens_per_rank=TOKENS, hidden=HIDDEN, num_topk=TOPK, num_aivs=64
    )


STEPS: dict[str, Callable[[], int]] = {
    step.__name__: step for step in (missing, runtime, kernels, domain, dispatch, conform)
}


def main(arguments: list[str]) -> int:
    """Run one step."""
    if len(arguments) != 1 or arguments[0] not in STEPS:
        print(f"one of {', '.join(STEPS)} is needed")
        return 2
    try:
        return STEPS[arguments[0]]()
    except NativeEnvironmentError as error:
        print(error)
        return 3
    except (CompileError, DeviceFailure) as error:
        print(error)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
