"""`epsim inspect`: what a routing asks of a group."""

from typing import Annotated

from cyclopts import Parameter

from epsim.cli.routing import DtypeOption, GroupOptions, JsonFlag, RoutingText, print_json
from epsim.cli.wholes import Whole


def inspect(
    *,
    routing: RoutingText,
    expert_limit: Annotated[int | None, Whole, Parameter(help="choices that an expert would take")] = None,
    rank_limit: Annotated[int | None, Whole, Parameter(help="received rows that a rank would take")] = None,
    dtype: DtypeOption = None,
    aivs: Annotated[int | None, Whole, Parameter(help="vector cores of the kernels, else 64")] = None,
    group: Annotated[GroupOptions | None, Parameter(help="group")] = None,
    json: JsonFlag = False,
) -> None:
    """Show the load of a routing: per expert and rank, imbalance, masks, what limits would refuse or drop.

    - `epsim inspect --routing topk.safetensors --experts 256`
    - `epsim inspect --routing dump/ --expert-limit 512`
    - `epsim inspect --routing zipf:1.1 --ep 16 --tokens 4096 --seed 3`

    Look at the ranks per token and the active experts before you compare two timings: the same number of
    tokens can mean half the bytes.
    """
    from epsim.inspection import inspect_routing
    from epsim.report.story import inspection_text

    routed = (group or GroupOptions()).load(routing)
    options = routed.agreed_options({"dtype": dtype, "num_aivs": aivs})
    found = inspect_routing(
        routed.config,
        routed.topk,
        edition=options.edition,
        dtype=options.dtype,
        num_aivs=options.num_aivs,
        expert_limit=expert_limit,
        rank_limit=rank_limit,
        notes=routed.notes,
    )
    if json:
        print_json(found)
    else:
        print(inspection_text(found, routed.text))
