"""Options of the commands that read a routing, and the layout that it is told for."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from epsim.cli.wholes import Whole

if TYPE_CHECKING:
    from epsim.capture import CaptureOptions
    from epsim.inputs.routed import Routed

RoutingText = Annotated[
    str,
    Parameter(
        help="a file (.safetensors, .npz, .npy) with topk_idx, signed integers [rank, token, top-k], -1 = "
        "masked; a folder with one per rank, topk_idx [token, top-k]; a dump (docs/debug.md; its "
        "capture.json tells group and layout); or a law as uniform"
    ),
]
JsonFlag = Annotated[bool, Parameter(name="--json", negative="", help="print JSON for programs")]
DtypeOption = Annotated[
    Literal["fp8", "bf16"] | None, Parameter(help="of dispatch, else fp8; combine is always bf16")
]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GroupOptions:
    """The group, as far as the routing does not tell it."""

    ep: Annotated[int | None, Whole, Parameter(help="ranks; a file knows them, else 8")] = None
    experts: Annotated[
        int | None, Whole, Parameter(help="experts; a dump knows them, needed with other files, else 256")
    ] = None
    topk: Annotated[int | None, Whole, Parameter(help="choices of a token; a file knows them, else 6")] = None
    tokens: Annotated[str | None, Parameter(help="of a law: per rank, one number or 4,3; else 16")] = None
    seed: Annotated[int | None, Whole, Parameter(help="of a law, else 0")] = None
    masked_ratio: Annotated[float, Parameter(help="of a law: chance that a choice is masked")] = 0.0
    hidden: Annotated[int | None, Whole, Parameter(help="elements of a token, else 7168")] = None
    alignment: Annotated[
        int | None, Whole, Parameter(help="rows that an expert's block is padded to, else 128")
    ] = None
    capacity: Annotated[
        int | None, Whole, Parameter(help="most tokens that a rank may send; else as many as one does")
    ] = None

    def load(self, routing: str) -> "Routed":
        """Return group and routing."""
        from epsim.cli.predict import parse_numbers
        from epsim.inputs.routed import RoutingRequest, load_routing

        return load_routing(
            RoutingRequest(
                routing=routing,
                ep=self.ep,
                experts=self.experts,
                topk=self.topk,
                tokens=None if self.tokens is None else parse_numbers("tokens", self.tokens),
                seed=self.seed,
                masked_ratio=self.masked_ratio,
                hidden=self.hidden,
                alignment=self.alignment,
                capacity=self.capacity,
            )
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LayoutOptions:
    """How dispatch lays rows out, and how combine sums."""

    edition: Annotated[
        Literal["ascend", "nvidia-v2.5", "nvidia-v2"] | None,
        Parameter(help="whose forms and refusals, else ascend"),
    ] = None
    no_expand: Annotated[
        bool, Parameter(negative="", help="one row per token and rank (NVIDIA editions)")
    ] = False
    aivs: Annotated[int | None, Whole, Parameter(help="vector cores that send, else 64")] = None
    scaleup: Annotated[
        int | None, Whole, Parameter(help="ranks of a scale-up domain: hybrid (NVIDIA editions)")
    ] = None
    order: Annotated[
        Literal["one_rounding", "rank_reduced", "rank_then_domain"] | None,
        Parameter(help="of combine's sum; else that of the libraries"),
    ] = None

    def options(self, routed: "Routed", dtype: str | None) -> "CaptureOptions":
        """Return how dispatch and combine are called; a dump must have been called so."""
        return routed.agreed_options(
            {
                "edition": self.edition,
                "expand": False if self.no_expand else None,
                "num_aivs": self.aivs,
                "num_scaleup_ranks": self.scaleup,
                "order": self.order,
                "dtype": dtype,
            }
        )


def print_json(value: object) -> None:
    """Print a result as JSON; NaN and Inf become null."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
