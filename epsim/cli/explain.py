"""`epsim explain`: a token's whole story, or a row's."""

from typing import Annotated

from cyclopts import Parameter

from epsim.cli.routing import DtypeOption, GroupOptions, JsonFlag, LayoutOptions, RoutingText, print_json
from epsim.cli.wholes import Whole

Flag = Parameter(negative="")
PARTNERS = {
    "rank": "--token, the token's number there",
    "token": "--rank, the token's home",
    "row": "--at-rank, the rank that has the row",
    "at rank": "--row, a row there",
}


def explain(
    *,
    routing: RoutingText,
    rank: Annotated[int | None, Whole, Parameter(help="home rank of the token")] = None,
    token: Annotated[int | None, Whole, Parameter(help="the token's number there")] = None,
    row: Annotated[int | None, Whole, Parameter(help="or a row that dispatch delivered")] = None,
    at_rank: Annotated[int | None, Whole, Parameter(help="the rank that has the row")] = None,
    received: Annotated[
        bool, Flag, Parameter(help="the row is one of the received stream, before expansion")
    ] = False,
    dtype: DtypeOption = None,
    group: Annotated[GroupOptions | None, Parameter(help="group")] = None,
    layout: Annotated[LayoutOptions | None, Parameter(help="layout")] = None,
    json: JsonFlag = False,
) -> None:
    """Tell a token's whole story: experts, ranks, slots, rows, bytes, what comes back and how it is summed.

    Or the reverse: which token a row comes from.

    - `epsim explain --routing topk.safetensors --experts 256 --rank 3 --token 17`
    - `epsim explain --routing topk.safetensors --experts 256 --row 12 --at-rank 5`
    - `epsim explain --routing topk.safetensors --experts 256 --row 12 --at-rank 5 --received`
    - `epsim explain --routing dump/ --rank 3 --token 17`
    - `epsim explain --routing uniform --ep 2 --experts 4 --topk 3 --tokens 4 --rank 0 --token 2`

    Slots and rows are the canonical ones: by source rank, then token. A real run may order the tokens of one
    source rank in another way.
    """
    from epsim.report.story import row_text, story_text
    from epsim.story import Storyteller

    _check_question((rank, token), (row, at_rank), received)
    routed = (group or GroupOptions()).load(routing)
    options = (layout or LayoutOptions()).options(routed, dtype)
    teller = Storyteller(
        routed.config,
        routed.topk,
        mode=options.mode(),
        dtype=options.dtype,
        order=options.reduction_order(routed.config),
        notes=routed.notes,
    )
    if rank is not None and token is not None:
        story = teller.token(rank, token)
        print_json(story) if json else print(story_text(story))
    elif row is not None and at_rank is not None:
        found = teller.row(at_rank, row, is_received=received)
        print_json(found) if json else print(row_text(found))


def _check_question(token: tuple[int | None, ...], row: tuple[int | None, ...], received: bool) -> None:
    """Refuse half a question, and two at once."""
    from epsim.errors import InputError

    given = dict(zip(("rank", "token", "row", "at rank"), (*token, *row), strict=True))
    told = {name: value for name, value in given.items() if value is not None}
    if not told:
        raise InputError("token", "not given", "needs --rank and --token, or --row and --at-rank")
    if token != (None, None) and row != (None, None):
        name = "at rank" if row[0] is None else "row"
        raise InputError(name, told[name], "goes without --rank and --token")
    if received and row == (None, None):
        raise InputError("received", True, "goes with --row and --at-rank")
    if len(told) == 1:
        name, value = told.popitem()
        raise InputError(name, value, f"needs {PARTNERS[name]}")
