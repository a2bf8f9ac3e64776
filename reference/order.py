"""The order and the rounding points of combine's sum: part of the contract, so an input like any other.

For one token, V = the top-k columns k with an expert. A group's key is its highest k, its master; groups are
always added in ascending key, members of a group in ascending k.
"""

from dataclasses import dataclass

from reference.edition import Edition
from reference.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ReductionOrder:
    """Which partial sums are rounded to bf16 before the final sum.

    The final sum is fp32, adds the biases first and then what is left in ascending key, and is rounded once.

    Args:
      in_rank: the rows of one rank are first summed in fp32 and rounded to bf16; a single row stays as it is.
      in_domain: then the rank sums of one scale-up domain likewise. A domain of one rank is summed too.

    Raises:
      ConfigError: in_domain without in_rank, which no library does.
      Source: deepep-v2.md sections 3.2-3.3; deepep-ascend.md sections 4.5-4.6.
    """

    in_rank: bool
    in_domain: bool = False

    def __post_init__(self) -> None:
        """Refuse the fourth combination."""
        if self.in_domain and not self.in_rank:
            raise ConfigError("in_domain", True, "needs in_rank, a domain sums what its ranks have summed")

    @property
    def name(self) -> str:
        """The recipe's name: one_rounding, rank_reduced or rank_then_domain."""
        if self.in_domain:
            return "rank_then_domain"
        return "rank_reduced" if self.in_rank else "one_rounding"

    def check_edition(self, edition: Edition, *, is_hybrid: bool) -> None:
        """Refuse a recipe that the edition does not have.

        Raises:
          EditionError: one_rounding or rank_then_domain where only reduction per rank exists.
          ConfigError: rank_then_domain although there is one domain level only.
        """
        if not self.in_rank and not edition.has_single_reduction:
            raise edition.refuse("order", self.name, "reduces on the rank that holds the experts")
        if self.in_domain and not edition.has_hybrid:
            raise edition.refuse("order", self.name, "has one flat domain")
        if self.in_domain and not is_hybrid:
            raise ConfigError("order", self.name, "needs a hybrid dispatch, this one was direct")


ONE_ROUNDING = ReductionOrder(in_rank=False)
RANK_REDUCED = ReductionOrder(in_rank=True)
RANK_THEN_DOMAIN = ReductionOrder(in_rank=True, in_domain=True)
RECIPES = {order.name: order for order in (ONE_ROUNDING, RANK_REDUCED, RANK_THEN_DOMAIN)}


def library_order(*, expand: bool, allow_multiple_reduction: bool, is_hybrid: bool) -> ReductionOrder:
    """Return the recipe that the libraries use for their settings.

    Args:
      expand: whether combine reads one row per (token, expert); else the caller summed per rank already.
      allow_multiple_reduction: the buffer's flag.
      is_hybrid: whether there is more than one scale-up domain.

    Returns:
      ReductionOrder.
      Source: deepep-v2.md section 3.3, summary.
    """
    if allow_multiple_reduction:
        return RANK_THEN_DOMAIN if is_hybrid else RANK_REDUCED
    return ONE_ROUNDING if expand else RANK_REDUCED
