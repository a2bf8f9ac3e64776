"""`epsim predict`: what will dispatch and combine give, and what limits them?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from epsim.cli.wholes import Whole, parse_cards

if TYPE_CHECKING:
    from epsim.prediction import Predictions
    from epsim.report.prediction import Published
    from reference.routing.manifest import Workload

Flag = Parameter(negative="")


def predict(
    *,
    system: Annotated[
        str, Parameter(help="preset (ubl128, clos:1024, sm100), cluster .toml or HCCL .json")
    ] = "ubl128",
    model: Annotated[str, Parameter(help="shape: benchmark, v3, v4-flash, v4-pro, v4.1-flash")] = "benchmark",
    ep: Annotated[str, Parameter(help="group sizes, separated by commas")] = "8,16,32,64,128",
    tokens: Annotated[
        int | None, Whole, Parameter(help="tokens per rank; without: 16384, or a file's own")
    ] = None,
    stepped: Annotated[
        bool, Flag, Parameter(help="rank r sends r tokens fewer, as the published tests do")
    ] = False,
    op: Annotated[
        str, Parameter(help="dispatch, cached-dispatch, combine, separated by commas")
    ] = "dispatch,combine",
    dtype: Annotated[Literal["fp8", "bf16"], Parameter(help="of dispatch; combine is always bf16")] = "fp8",
    hidden: Annotated[
        int | None, Whole, Parameter(help="elements of a token, instead of the model's")
    ] = None,
    experts: Annotated[int | None, Whole, Parameter(help="physical experts, instead of the model's")] = None,
    topk: Annotated[int | None, Whole, Parameter(help="choices of a token, instead of the model's")] = None,
    alignment: Annotated[int, Whole, Parameter(help="rows that an expert's block is padded to")] = 128,
    routing: Annotated[
        str,
        Parameter(
            help="uniform, zipf:1.1, lognormal:0.5, unbalanced:2, precise:1.5, groups:8/4; or a file "
            "(.safetensors, .npz, .npy) with topk_idx, signed integers [rank, token, top-k], -1 = masked; a "
            "folder with one per rank; or loads per expert (.npy, .csv, .json, .toml)"
        ),
    ] = "uniform",
    seed: Annotated[int, Whole, Parameter(help="of sampled routing")] = 0,
    draws: Annotated[
        str | None, Parameter(help="sampled routings to average, or auto; without: exact")
    ] = None,
    masked_ratio: Annotated[float, Parameter(help="chance that a choice is masked")] = 0.0,
    two_layer: Annotated[
        Literal["dedup", "flat"], Parameter(help="how tokens cross the scale-out network")
    ] = "dedup",
    ranks_per_supernode: Annotated[
        int | None, Whole, Parameter(help="spread the group over more supernodes")
    ] = None,
    hardware: Annotated[str | None, Parameter(help="profile name or .toml file")] = None,
    software: Annotated[str | None, Parameter(help="profile name or .toml file")] = None,
    settings: Annotated[
        list[str] | None, Parameter(name="--set", negative="", help="NAME=VALUE, replaces one profile number")
    ] = None,
    buffer_bytes: Annotated[
        str | None, Parameter(help="size of an existing buffer to check, as 2GiB")
    ] = None,
    workload: Annotated[
        Path | None,
        Parameter(help="manifest that says group, tokens, routing, seed and dtype; see --save-workload"),
    ] = None,
    save_workload: Annotated[
        Path | None, Parameter(help="write the manifest of this run (one group size)")
    ] = None,
    port_rate: Annotated[
        str | None, Parameter(help="rate of one port, as 400Gbps (HCCL files have none)")
    ] = None,
    npus: Annotated[
        str | None, Parameter(help="card of each rank, as 0,8,16 or 0:128:16; without: rank r on card r")
    ] = None,
    compare: Annotated[bool, Flag, Parameter(help="print published ranges beside")] = False,
    json: Annotated[bool, Flag, Parameter(help="print JSON for programs")] = False,
    csv: Annotated[Path | None, Parameter(help="write one line per prediction to this file")] = None,
    plot: Annotated[
        Path | None, Parameter(help="write a picture (.png, .svg, .pdf); needs epsim[plot]")
    ] = None,
) -> None:
    """Predict dispatch and combine: bandwidth, time, and what limits them.

    - `epsim predict --system ubl128 --model v3 --ep 32,64`
    - `epsim predict --ep 64 --routing zipf:0.8 --seed 3`
    - `epsim predict --ep 128 --routing topk_dump/ --plot out.svg`
    - `epsim predict --system clos:1024 --ep 1024 --experts 1024`
    - `epsim predict --ep 32 --routing zipf:0.5 --save-workload zipf32.json`, then `--workload zipf32.json`
    - `epsim predict --ep 8 --hardware 950pr --set hbm_efficiency=0.9 --json`
    """
    from epsim.errors import InputError
    from epsim.files import check_outputs, write_files
    from epsim.predict import predict as library_predict

    plot_format = _plot_suffix(plot)
    if compare and json:
        raise InputError("compare", "with --json", "is a table for people; epsim validate --json has both")
    check_outputs((save_workload, csv, plot))
    result = library_predict(
        system,
        model=model,
        ep=parse_numbers("ep", ep),
        tokens=tokens,
        token_counts="stepped" if stepped else "equal",
        operations=tuple(word.strip() for word in op.split(",")),  # type: ignore[misc]  # predict checks
        dtype=dtype,
        hidden=hidden,
        num_experts=experts,
        num_topk=topk,
        expert_alignment=alignment,
        routing=routing,
        seed=seed,
        draws=parse_draws(draws),
        masked_ratio=masked_ratio,
        two_layer=two_layer,
        ranks_per_supernode=ranks_per_supernode,
        hardware=hardware,
        software=software,
        settings=parse_settings(settings),
        num_buffer_bytes=_size(buffer_bytes),
        workload=_workload(workload),
        port_rate=port_rate,
        npus=None if npus is None else parse_cards("npus", npus),
    )
    published = _published(result) if compare else None
    files: list[tuple[Path, bytes | str]] = []
    if save_workload is not None:
        files.append((save_workload, _manifest(result)))
    if csv is not None:
        files.append((csv, result.to_csv()))
    if plot is not None:
        files.append((plot, _picture(result, plot_format, published)))
    write_files(files)
    if json:
        print(result.to_json())
        return
    from epsim.report.prediction import predictions_text

    print(predictions_text(result, published))
    for path, _ in files:
        print(f"wrote {path}")


def parse_settings(settings: list[str] | None) -> dict[str, str]:
    """Read NAME=VALUE words.

    Raises:
      InputError: a word without "=", or a name said twice.
    """
    from epsim.errors import InputError

    found: dict[str, str] = {}
    for word in settings or []:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise InputError("set", word, "must have the form NAME=VALUE")
        if name in found:
            raise InputError("set", word, f"gives {name} a second time")
        found[name] = value
    return found


def parse_numbers(field: str, text: str) -> tuple[int, ...]:
    """Read whole numbers separated by commas.

    Raises:
      InputError: anything else.
    """
    from epsim.errors import InputError

    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not (word.isascii() and word.isdigit()) or len(word) > 9:
            raise InputError(field, text, "must be whole numbers separated by commas, as 8,16,32")
    return tuple(int(word) for word in words)


def parse_draws(text: str | None) -> "int | Literal['auto'] | None":
    """Read a number of draws, or "auto"; None stays None.

    Raises:
      InputError: anything else.
    """
    from epsim.errors import InputError

    if text is None:
        return None
    if text == "auto":
        return "auto"
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InputError("draws", text, "must be auto or a whole number")
    return int(text)


def _size(text: str | None) -> int | None:
    if text is None:
        return None
    from topology.units import parse_size

    return parse_size(text, "buffer bytes")


def _workload(path: Path | None) -> "Workload | None":
    if path is None:
        return None
    from reference.routing.manifest import read_manifest

    return read_manifest(path)


def _manifest(result: "Predictions") -> bytes:
    """Return the manifest of the only workload."""
    from epsim.errors import InputError
    from reference.routing.manifest import manifest_bytes

    if len(result.workloads) != 1:
        sizes = ",".join(str(workload.config.ep_size) for workload in result.workloads)
        raise InputError("save-workload", f"ep {sizes}", "a manifest holds one group size")
    return manifest_bytes(result.workloads[0])


def _published(result: "Predictions") -> "dict[tuple[str, int], Published]":
    """Return published ranges by operation and group size, of the cases that really are the measured ones."""
    from epsim.calibration.measured import packaged_measurements
    from epsim.report.prediction import Published

    found: dict[tuple[str, int], Published] = {}
    for row in packaged_measurements("published"):
        if row.use != "calibrate" or row.gb_per_s_min is None or row.gb_per_s_max is None:
            continue
        for item in result:
            is_measured = (
                (item.hardware, item.system.partition(":")[0]) == ("950dt", "ubl128")
                and (item.operation, item.ep_size) == (row.op, row.ep_size)
                and (item.hidden, item.num_topk, item.num_experts)
                == (row.hidden, row.num_topk, row.num_experts)
                and item.tokens_per_rank == row.tokens_per_rank
                and row.dtype.startswith(item.dtype)
                and item.routing.startswith("uniform (")
            )
            if is_measured:
                found[item.operation, item.ep_size] = Published(
                    gb_per_s_min=row.gb_per_s_min, gb_per_s_max=row.gb_per_s_max, source=row.source
                )
    return found


def _plot_suffix(path: Path | None) -> str:
    """Check a picture's name before any work is done."""
    if path is None:
        return ""
    from epsim.errors import InputError

    if path.suffix not in (".png", ".svg", ".pdf"):
        raise InputError("plot", str(path), "must end in .png, .svg or .pdf")
    return path.suffix.removeprefix(".")


def _picture(
    result: "Predictions", suffix: str, published: "dict[tuple[str, int], Published] | None"
) -> bytes:
    from epsim.errors import MissingExtraError
    from epsim.report.plots import predictions_plot

    try:
        return predictions_plot(result, suffix, published)
    except ImportError as error:
        raise MissingExtraError(f"--plot needs matplotlib: pip install 'epsim[plot]' ({error})") from None
