"""`epsim validate`: how far are predictions from public measurements?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from epsim.cli.wholes import Whole

if TYPE_CHECKING:
    from epsim.calibration.measured import Measurement

Flag = Parameter(negative="")


def validate(
    *,
    measurements: Annotated[
        str | None, Parameter(help="published, community or a .csv file; without: all that epsim has")
    ] = None,
    draws: Annotated[
        str | None, Parameter(help="sampled routings to average, or auto; without: exact")
    ] = None,
    seed: Annotated[int, Whole, Parameter(help="of sampled routing")] = 0,
    software: Annotated[
        str | None, Parameter(help="profile name or .toml file, instead of each row's own")
    ] = None,
    settings: Annotated[
        list[str] | None, Parameter(name="--set", negative="", help="NAME=VALUE, replaces one profile number")
    ] = None,
    csv: Annotated[Path | None, Parameter(help="write one line per published figure to this file")] = None,
    json: Annotated[bool, Flag, Parameter(help="print JSON for programs")] = False,
) -> int:
    """Predict every row of measurement files and print predicted against measured.

    Rows marked calibrate, which a fit may use, rows that a profile depends on and all others stand apart.
    Where the error exceeds 10 % the report says which terms the model lacks. The predictions do not depend
    on the measured figures.

    Exit code 1 when the predicted mean of a row marked calibrate lies outside its published range.

    - `epsim validate`
    - `epsim validate --measurements published --draws auto`
    - `epsim validate --measurements mine.csv --software mine.toml --csv compared.csv`

    The columns of a file are those of `epsim/measurements/published.csv`; its system column may also name
    a system of epsim (`ubl128`, `lab.toml`).
    """
    from epsim.cli.predict import parse_draws, parse_settings
    from epsim.files import check_outputs, write_atomically
    from epsim.report.measured import records_csv, validation_records, validation_text
    from epsim.validate import validate as library_validate

    check_outputs([csv])
    rows = load_rows(measurements)
    result = library_validate(
        rows, draws=parse_draws(draws), seed=seed, software=software, settings=parse_settings(settings)
    )
    records = validation_records(result)
    if csv is not None:
        write_atomically(csv, records_csv(records))
    if json:
        import json as codec

        outside = [c.row.id for c in result.outside]
        print(codec.dumps({"outside": outside, "rows": records}, indent=2))
    else:
        print(validation_text(result))
        if csv is not None:
            print(f"wrote {csv}")
    return int(bool(result.outside))


def load_rows(measurements: str | None) -> "tuple[Measurement, ...]":
    """Return the rows of a packaged set, of a file, or of all packaged sets.

    Raises:
      InputError: no such set or file, or a row that breaks a rule.
    """
    from epsim.calibration.measured import packaged_measurements, read_measurements
    from epsim.validate import all_packaged

    if measurements is None:
        return all_packaged()
    if "." in measurements or "/" in measurements:
        return read_measurements(measurements)
    return packaged_measurements(measurements)
