"""`epsim calibrate`: fit a software profile to measurements."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from epsim.cli.wholes import Whole

if TYPE_CHECKING:
    from epsim.calibration.result import Calibration

Flag = Parameter(negative="")


def calibrate(
    *,
    measurements: Annotated[str, Parameter(help="published, community or a .csv file")] = "published",
    fit: Annotated[
        str, Parameter(help="free numbers of the software profile, separated by commas")
    ] = "hbm_efficiency,fanout_slope_dispatch,fanout_slope_combine",
    knee: Annotated[
        str, Parameter(help="grid: the best of 16 to 32 ranks; or a number to hold it there")
    ] = "grid",
    settings: Annotated[
        list[str] | None, Parameter(name="--set", negative="", help="NAME=VALUE, holds one profile number")
    ] = None,
    software: Annotated[
        str | None, Parameter(help="profile name or .toml file to start from; without: the rows' own")
    ] = None,
    leave_one_out: Annotated[
        bool, Flag, Parameter(help="also predict every group size from a fit to the others")
    ] = False,
    all_rows: Annotated[bool, Flag, Parameter(help="also use rows marked validate")] = False,
    draws: Annotated[
        int, Whole, Parameter(help="fits to targets drawn inside the ranges, for the spread")
    ] = 200,
    seed: Annotated[int, Whole, Parameter(help="of these draws")] = 0,
    out: Annotated[
        Path | None, Parameter(help="write the fitted profile to this .toml file; implies --leave-one-out")
    ] = None,
    name: Annotated[
        str | None, Parameter(help="name of the fitted profile; without: that of the starting one")
    ] = None,
    csv: Annotated[Path | None, Parameter(help="write one line per row and fit to this file")] = None,
    json: Annotated[bool, Flag, Parameter(help="print JSON for programs")] = False,
) -> None:
    """Fit numbers of a software profile to measurements, and say how far the fit can be trusted.

    Least squares on relative errors to the mid-points of the measured ranges. Numbers that are not free
    keep the profile's values, or those of --set. Numbers that the rows cannot tell apart are refused.

    - `epsim calibrate --leave-one-out`
    - `epsim calibrate --fit wire_efficiency,hbm_efficiency,fanout_slope_dispatch,fanout_slope_combine`
    - `epsim calibrate --set hbm_efficiency=1 --fit fanout_slope_dispatch,fanout_slope_combine`
    - `epsim calibrate --measurements mine.csv --knee 23 --name mine --out mine.toml`

    Use the written profile with `epsim predict --software mine.toml`.
    """
    from epsim.calibrate import calibrate as library_calibrate
    from epsim.cli.predict import parse_settings
    from epsim.cli.validate import load_rows
    from epsim.errors import InputError
    from epsim.files import check_outputs

    if out is not None and out.suffix != ".toml":
        raise InputError("out", str(out), "must end in .toml")
    check_outputs([out, csv])
    is_file = "." in measurements or "/" in measurements
    result = library_calibrate(
        load_rows(measurements),
        measurements=Path(measurements).name if is_file else f"{measurements}.csv",
        fit=tuple(word.strip() for word in fit.split(",")),
        knee=_knee(knee),
        software=software,
        settings=parse_settings(settings),
        leave_one_out=leave_one_out or out is not None,
        all_rows=all_rows,
        name=name,
        num_draws=draws,
        seed=seed,
    )
    written = _write(result, out, csv)
    if json:
        import json as codec

        from epsim.report.measured import calibration_summary

        print(codec.dumps(calibration_summary(result), indent=2))
        return
    from epsim.report.measured import calibration_text

    print(calibration_text(result))
    for path in written:
        print(f"wrote {path}")


def _knee(text: str) -> "float | Literal['grid']":
    from epsim.errors import InputError

    if text == "grid":
        return "grid"
    try:
        return float(text)
    except ValueError:
        raise InputError("knee", text, "must be grid or a number of ranks") from None


def _write(result: "Calibration", out: Path | None, csv: Path | None) -> list[Path]:
    """Write profile and records, both or neither."""
    from epsim.files import write_files
    from epsim.platform.profile import profile_toml
    from epsim.report.measured import calibration_records, records_csv

    texts: list[tuple[Path, str]] = []
    if out is not None:
        texts.append((out, profile_toml(result.software)))
    if csv is not None:
        texts.append((csv, records_csv(calibration_records(result))))
    write_files(texts)
    return [path for path, _ in texts]
