"""`epsim profiles`: the numbers behind a prediction and where they came from."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from epsim.platform.profile import Hardware, Software

Flag = Parameter(negative="")


def profiles(
    name: Annotated[str | None, Parameter(help="profile to show; without: list all")] = None,
    /,
    *,
    toml: Annotated[
        bool, Flag, Parameter(help="print the whole profile as TOML, to start your own from")
    ] = False,
    json: Annotated[bool, Flag, Parameter(help="print JSON for programs")] = False,
) -> None:
    """List hardware and software profiles, or show one with value, confidence and source of every number.

    - `epsim profiles`
    - `epsim profiles 950dt`
    - `epsim profiles deepep-ascend-2026-09-poc --toml > mine.toml`

    Use your own with `epsim predict --software mine.toml`, or change single numbers with `--set NAME=VALUE`.
    """
    from epsim.platform.profile import (
        entries,
        hardware_profile,
        packaged_profiles,
        profile_toml,
        software_profile,
    )
    from epsim.report.prediction import plain_table

    known = packaged_profiles()
    if name is None:
        loaded = [
            (kind, (hardware_profile if kind == "hardware" else software_profile)(n))
            for n, kind in known.items()
        ]
        if json:
            _print_json([{"kind": kind, "name": p.name, "title": p.title} for kind, p in loaded])
            return
        print(plain_table(("kind", "name", "what it is"), [(kind, p.name, p.title) for kind, p in loaded]))
        return
    profile = _find(name, known)
    if toml:
        print(profile_toml(profile), end="")
        return
    rows = [
        (key, entry.text, entry.source.kind, meaning, entry.source.text)
        for key, entry, meaning in entries(profile)
    ]
    if json:
        keys = ("name", "value", "confidence", "meaning", "source")
        _print_json(
            {
                "name": profile.name,
                "title": profile.title,
                "parameters": [dict(zip(keys, row, strict=True)) for row in rows],
            }
        )
        return
    print(f"{profile.name}: {profile.title}\n")
    print(plain_table(("parameter", "value", "confidence", "meaning", "source"), rows))


def _find(name: str, known: dict[str, str]) -> "Hardware | Software":
    """Load a profile of either kind; a file says its kind itself, or is tried as both."""
    import tomllib

    from epsim.errors import InputError
    from epsim.platform.profile import hardware_profile, software_profile
    from reference.routing.readable import read_regular

    if name in known:
        return (hardware_profile if known[name] == "hardware" else software_profile)(name)
    if not name.endswith(".toml"):
        raise InputError("profile", name, f"must be a .toml file or one of {', '.join(known)}")
    try:
        kind = tomllib.loads(read_regular(name).decode()).get("kind", "software")
    except (OSError, ValueError):
        kind = "software"
    return (hardware_profile if kind == "hardware" else software_profile)(name)


def _print_json(value: object) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())
