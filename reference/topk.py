"""The gate's choice: for each rank, which experts each of its tokens goes to.

R ranks, T tokens of one rank, K top-k, E experts. -1 = no expert.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from reference.config import EPConfig, whole_number
from reference.errors import ConfigError

IdArray = npt.NDArray[np.int64]
WeightArray = npt.NDArray[np.float32]
IdSpace = Literal["physical", "logical"]
"""Physical ids name slots that hold weights; logical ids name experts that may have several slots."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TopK:
    """A valid routing of all ranks; a TopK that exists keeps every rule below.

    The arrays are kept as read-only views, not copied: whoever made them must not write to them later.

    Args:
      num_experts: E of the id space.
      topk_idx: per rank [T_r, K] int64, an expert id or -1 = none. T_r may differ and may be 0; K is
        the same everywhere; an id appears at most once in a token.
      topk_weights: per rank [T_r, K] float32 without NaN; None = the routing has no weights.
      id_space: whether the ids are physical or still logical (see `replicas.to_physical`).

    Raises:
      ConfigError: names rank, token, column and value of the first entry that breaks a rule.
      Source: design.md section 5.
    """

    num_experts: int
    topk_idx: tuple[IdArray, ...]
    topk_weights: tuple[WeightArray, ...] | None = None
    id_space: IdSpace = "physical"

    def __post_init__(self) -> None:
        """Check all rules, then freeze the arrays."""
        object.__setattr__(self, "num_experts", whole_number("num_experts", self.num_experts, 1))
        if self.id_space not in ("physical", "logical"):
            raise ConfigError("id_space", self.id_space, "must be 'physical' or 'logical'")
        object.__setattr__(self, "topk_idx", _frozen("topk_idx", self.topk_idx, np.dtype(np.int64)))
        for rank, idx in enumerate(self.topk_idx):
            _check_ids(rank, idx, self.num_experts)
        if self.topk_weights is None:
            return
        weights = _frozen("topk_weights", self.topk_weights, np.dtype(np.float32))
        object.__setattr__(self, "topk_weights", weights)
        self._check_weights(weights)

    def _check_weights(self, weights: tuple[WeightArray, ...]) -> None:
        if len(weights) != self.ep_size:
            raise ConfigError("topk_weights", f"{len(weights)} ranks", f"topk_idx has {self.ep_size}")
        for rank, (idx, weight) in enumerate(zip(self.topk_idx, weights, strict=True)):
            if weight.shape != idx.shape:
                rule = f"must have the shape of topk_idx, {idx.shape}"
                raise ConfigError(f"topk_weights[rank {rank}]", weight.shape, rule)
            bad = np.isnan(weight)
            if bad.any():
                token, k = np.argwhere(bad)[0]
                field = f"topk_weights[rank {rank}, token {token}, column {k}]"
                raise ConfigError(field, float("nan"), "must be a number")

    @property
    def ep_size(self) -> int:
        """R, ranks of the routing."""
        return len(self.topk_idx)

    @property
    def num_topk(self) -> int:
        """K, columns of every rank's ids."""
        return int(self.topk_idx[0].shape[1])

    @property
    def tokens_per_rank(self) -> tuple[int, ...]:
        """[R] tokens of each rank, whether or not they have a valid expert."""
        return tuple(idx.shape[0] for idx in self.topk_idx)

    def check_against(self, config: EPConfig) -> None:
        """Refuse a routing that was made for another group.

        Raises:
          ConfigError: ranks, top-k or experts differ, a rank holds too many tokens, or the ids are
            logical although the config has redundant experts.
        """
        if self.ep_size != config.ep_size:
            rule = f"must be that of the group, whose ep_size is {config.ep_size}"
            raise ConfigError("number of ranks in topk_idx", self.ep_size, rule)
        if self.num_topk != config.num_topk:
            rule = f"must be that of the group, whose num_topk is {config.num_topk}"
            raise ConfigError("number of columns in topk_idx", self.num_topk, rule)
        if self.id_space != "physical":
            raise ConfigError("id_space", self.id_space, "map logical ids to physical ones first")
        if self.num_experts != config.num_experts:
            rule = f"the routing must be made for the config's {config.num_experts} physical experts"
            raise ConfigError("topk_idx.num_experts", self.num_experts, rule)
        most = max(self.tokens_per_rank)
        if most > config.num_max_tokens_per_rank:
            field = f"topk_idx[rank {self.tokens_per_rank.index(most)}]"
            rule = f"num_max_tokens_per_rank is {config.num_max_tokens_per_rank}"
            raise ConfigError(field, f"{most} tokens", rule)


def distinct_columns(idx: IdArray, largest: int) -> npt.NDArray[Any]:
    """Return ids column by column in a narrow dtype, masked ones made different from everything.

    Comparing columns is how repeats are found; -1 must not count as a repeat of -1.

    Args:
      idx: [T, K] int64, -1 = none.
      largest: largest id that may occur.

    Returns:
      [K, T] int16 or int32, C order; a masked entry of column k is -1 - k.
    """
    dtype = np.dtype(np.int16 if largest < 2**15 and idx.shape[1] < 2**15 else np.int32)
    columns = idx.T.astype(dtype, order="C")
    if idx.size and idx.min() < 0:
        masks = -1 - np.arange(idx.shape[1], dtype=dtype)
        columns = np.where(columns < 0, masks[:, None], columns)
    return columns


def _frozen(
    name: str, arrays: Sequence[npt.NDArray[Any]], dtype: np.dtype[Any]
) -> tuple[npt.NDArray[Any], ...]:
    """Return read-only views of arrays that are [T, K] of `dtype` with one K."""
    if len(arrays) == 0:
        raise ConfigError(name, "empty", "must hold one array per rank")
    views = []
    for rank, array in enumerate(arrays):
        field = f"{name}[rank {rank}]"
        if not isinstance(array, np.ndarray) or array.dtype != dtype:
            raise ConfigError(field, getattr(array, "dtype", type(array)), f"must be an array of {dtype}")
        if array.ndim != 2 or array.shape[1] == 0:
            raise ConfigError(field, array.shape, "must have the shape [tokens, top-k] with top-k at least 1")
        if array.shape[1] != arrays[0].shape[1]:
            raise ConfigError(field, f"{array.shape[1]} columns", f"rank 0 has {arrays[0].shape[1]}")
        view = array.view()
        view.flags.writeable = False
        views.append(view)
    return tuple(views)


def _check_ids(rank: int, idx: IdArray, num_experts: int) -> None:
    if not idx.size:
        return
    if idx.min() < -1 or idx.max() >= num_experts:
        token, k = np.argwhere((idx < -1) | (idx >= num_experts))[0]
        rule = f"must be an expert 0..{num_experts - 1}, or -1 for none"
        raise ConfigError(f"topk_idx[rank {rank}, token {token}, column {k}]", int(idx[token, k]), rule)
    columns = distinct_columns(idx, num_experts)
    repeats = [columns[:k] == columns[k] for k in range(1, columns.shape[0])]
    if not any(repeat.any() for repeat in repeats):
        return
    # The first token with a repeat, then its first repeating column: the order in which a reader looks.
    seen = np.array([repeat.any(axis=0) for repeat in repeats])  # [K-1, T]
    token = int(np.argmax(seen.any(axis=0)))
    k = int(np.argmax(seen[:, token])) + 1
    rule = "an expert may appear once in a token"
    raise ConfigError(f"topk_idx[rank {rank}, token {token}, column {k}]", int(idx[token, k]), rule)
