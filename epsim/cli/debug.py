"""`epsim debug`: is what a run dumped right, and if not, where is it wrong first?"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from epsim.cli.routing import JsonFlag, print_json
from epsim.cli.wholes import Whole


def debug(
    capture: Annotated[Path, Parameter(help="folder with capture.json and one file of arrays per rank")],
    /,
    *,
    located: Annotated[int, Whole, Parameter(help="places to name per field and rank; all are counted")] = 10,
    json: JsonFlag = False,
) -> int:
    """Compare a dump of dispatch and combine with the reference, and name the first wrong place.

    Fields are judged in the order of the data flow, rows matched by source rank and token. Exit code 0 if all
    that could be compared is equal bit for bit; the first line says which results were not. 1 if something
    differs, in shape or dtype too, if some ranks lack a field that others gave and capture.json does not say
    so, or if equality would prove nothing (nothing to compare; inputs all zero, all the same, or all local).
    2 if the folder is bad input: unreadable, other rank files than the group's, a group no dispatch takes,
    or what dispatch and combine were given does not fit the group. 3 if the machine has too little memory.

    - `epsim debug dump/`
    - `epsim debug dump/ --json`

    How to dump from `deep_ep` in ten lines: docs/debug.md.
    """
    from epsim.capture import read_capture
    from epsim.diagnose import diagnose
    from epsim.errors import InputError
    from epsim.report.story import diagnosis_text

    if located < 1:
        raise InputError("located", located, "must be at least 1")
    found = diagnose(read_capture(capture), max_located=located)
    if json:
        from epsim.report.story import diagnosis_summary

        print_json(diagnosis_summary(found))
    else:
        print(diagnosis_text(found, str(capture)))
    return int(not found.is_equal)
