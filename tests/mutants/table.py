"""All mutants."""

from tests.mutants.combine import COMBINE
from tests.mutants.common import COMMON
from tests.mutants.dispatch import DISPATCH
from tests.mutants.dispatch_epilogue import EPILOGUE
from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (*COMMON, *DISPATCH, *EPILOGUE, *COMBINE)


def find(name: str) -> Mutant:
    """Return the mutant of a name.

    Raises:
      KeyError: there is none.
    """
    return {mutant.name: mutant for mutant in MUTANTS}[name]
