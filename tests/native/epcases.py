"""Cases of the EP kernels, drawn from a seed, and the sequence of calls that each runs through."""

import ml_dtypes
import numpy as np

from native.twin import Twin
from reference.config import EPConfig
from reference.memory.sizes import ascend_scale_packs, element_bytes
from reference.order import ONE_ROUNDING, RANK_REDUCED
from reference.topk import TopK
from tests.native import epchecks as checks
from tests.native.epkit import Case, Group, start_combine, start_dispatch


def draw_routing(rng: np.random.Generator, config: EPConfig) -> TopK:
    """Return routings with short or empty ranks, masked choices, and sometimes one target for all."""
    ids, weights = [], []
    is_skewed, masked = rng.random() < 0.2, rng.choice([0, 0.2, 0.9])
    for _ in range(config.ep_size):
        num_tokens = int(rng.integers(0, config.num_max_tokens_per_rank + 1))
        rows = [rng.permutation(config.num_experts) for _ in range(num_tokens)]
        if is_skewed:
            rows = [np.arange(config.num_experts)] * num_tokens
        idx = (
            np.array(rows, dtype=np.int64)
            .reshape(num_tokens, config.num_experts)[:, : config.num_topk]
            .copy()
        )
        idx[rng.random(idx.shape) < masked] = -1
        ids.append(idx)
        weights.append(rng.standard_normal(idx.shape).astype(np.float32))
    return TopK(num_experts=config.num_experts, topk_idx=tuple(ids), topk_weights=tuple(weights))


def draw_case(rng: np.random.Generator, *, most_tokens: int = 8) -> Case:
    """Return a case of 1 to 4 ranks and 2 to 4 AIVs."""
    num_ranks, num_local = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    num_experts = num_ranks * num_local
    config = EPConfig(
        ep_size=num_ranks,
        num_experts=num_experts,
        num_topk=int(rng.integers(1, min(num_experts, 8) + 1)),
        hidden=int(rng.choice([32, 64, 128, 256])),
        num_max_tokens_per_rank=int(rng.integers(1, most_tokens + 1)),
        expert_alignment=int(rng.choice([1, 1, 4, 8, 128])),
    )
    names = ("barrier_in_prologue", "rotate_by_aiv", "early_doorbells", "single_reduction")
    return Case(
        config=config,
        topk=draw_routing(rng, config),
        num_aivs=int(rng.integers(2, 5)),
        dtype=str(rng.choice(["bf16", "fp8"])),
        cpu_sync=bool(rng.integers(2)),
        with_weights=bool(rng.integers(2)),
        zero_padding=bool(rng.random() < 0.7),
        column_major_scales=bool(rng.integers(2)),
        num_biases=int(rng.integers(0, 3)),
        switches={name: int(rng.random() < 0.4) for name in names},
    )


def draw_payload(
    rng: np.random.Generator, case: Case, dtype: str
) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Return (payload bytes, scale packs or None) of every rank; any bits."""
    hidden = case.config.hidden
    packs, width = ascend_scale_packs(hidden, dtype), hidden * element_bytes(dtype)
    drawn = []
    for idx in case.topk.topk_idx:
        scales = rng.integers(0, 2**16, (len(idx), packs)).astype("<u2") if packs else None
        drawn.append((rng.integers(0, 256, (len(idx), width), dtype=np.uint8), scales))
    return drawn


def draw_rows(rng: np.random.Generator, num_rows: int, hidden: int) -> np.ndarray:
    """Return bf16 rows of many magnitudes, some of them -0."""
    rows = rng.standard_normal((num_rows, hidden)) * 10.0 ** rng.integers(-3, 4, (num_rows, hidden))
    rows[rng.random(rows.shape) < 0.05] = -0.0
    return rows.astype(ml_dtypes.bfloat16)


class Sequence:
    """Calls on one group, each compared with the definition once it has run."""

    def __init__(
        self, twin: Twin, case: Case, rng: np.random.Generator, params: dict[str, int | str]
    ) -> None:
        """Make the group; rng draws contents."""
        self.case, self.rng, self.group = case, rng, Group(twin, case, params)
        self.ranks = range(case.config.ep_size)
        _, self.handles = checks.definition(case)

    def heads(self):
        """Return the jetties of all ranks; none exist in a group of one."""
        return [checks.jetties(self.group, rank) for rank in self.ranks] if len(self.ranks) > 1 else None

    def dispatch(self) -> None:
        """Run a fresh dispatch and compare everything that it leaves."""
        case, group, before = self.case, self.group, self.heads()
        weights = case.topk.topk_weights if case.with_weights else None
        payload = self.payload = draw_payload(self.rng, case, case.dtype)
        stats = [self.rng.integers(0, 100, group.num_local).astype(np.int32) for _ in self.ranks]
        self.done = start_dispatch(group, payload, case.dtype, weights=weights, stats=stats)
        group.machine.run()
        self.found = [checks.read_handle(group, rank, self.done[rank]) for rank in self.ranks]
        for rank, (done, found) in enumerate(zip(self.done, self.found, strict=True)):
            checks.check_handle(group, rank, found, self.handles[rank])
            checks.check_rows(group, rank, done, found, payload, case.dtype, weights)
            checks.check_counts(group, rank, done, found, self.handles[rank], stats[rank])
            if before is not None:
                checks.check_dispatch_requests(group, rank, done, found, before[rank])
        checks.check_workspace(group)
        checks.check_region(group, self.found, payload, weights)
        checks.check_counters(group, self.found)

    def combine(self, then=lambda: None) -> None:
        """Run a combine, with what `then` queues right behind it, and compare its outputs."""
        case, group, before = self.case, self.group, self.heads()
        hidden = case.config.hidden
        y = [draw_rows(self.rng, done.num_rows, hidden) for done in self.done]
        weights = None
        if self.rng.integers(2):
            weights = [self.rng.standard_normal(done.num_rows).astype(np.float32) for done in self.done]
        biases = tuple(
            [draw_rows(self.rng, len(idx), hidden) for idx in case.topk.topk_idx]
            for _ in range(case.num_biases)
        )
        outputs = start_combine(group, self.done, y, weights=weights, biases=biases)
        queued = then()
        group.machine.run()
        for rank in self.ranks if before is not None and queued is None else ():
            checks.check_combine_requests(group, rank, outputs[rank], self.found[rank], before[rank])
        order = ONE_ROUNDING if case.switches.get("single_reduction") else RANK_REDUCED
        checks.check_combined(group, self.done, self.found, self.handles, y, outputs, weights, biases, order)
        checks.check_workspace(group)

    def combine_and_cached(self) -> None:
        """Queue a cached dispatch right behind a combine, with another dtype and weights; compare both."""
        case, group, rng = self.case, self.group, self.rng
        dtype = str(rng.choice(["bf16", "fp8"]))
        payload, weights = draw_payload(rng, case, dtype), None
        if rng.integers(2):
            weights = [rng.standard_normal(idx.shape).astype(np.float32) for idx in case.topk.topk_idx]
        again = []

        def queue():
            again.extend(start_dispatch(group, payload, dtype, handles=self.done, weights=weights))
            return again

        self.combine(queue)
        for rank in self.ranks:
            found = checks.read_handle(group, rank, again[rank])
            for name, values in found.items():
                np.testing.assert_array_equal(values, self.found[rank][name])
            checks.check_rows(group, rank, again[rank], found, payload, dtype, weights)
