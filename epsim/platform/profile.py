"""Hardware and software profiles: named sets of sourced numbers, read from TOML.

A profile file has `name`, `title` and a table `parameters`; each parameter is a table with `value`
(with its unit), `confidence` and `source`. A file may say `base = "NAME"` and give only what differs.
"""

import difflib
import hashlib
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from importlib import resources
from typing import Any, Literal, TypeVar

from epsim.errors import InputError
from epsim.platform.quantity import Parameter, Quantity, given
from reference.routing.readable import read_regular
from topology.errors import TopologyError
from topology.framing import FORMS
from topology.source import Source

RowUnit = Literal["rank", "expert"]
_ENTRY_KEYS = {"value", "confidence", "source"}
_FILE_KEYS = {"name", "title", "base", "kind", "parameters"}


def _declared(declaration: Parameter) -> Any:  # noqa: ANN401  (a dataclass field poses as its type)
    return field(metadata={"parameter": declaration})


@dataclass(frozen=True, kw_only=True)
class Text:
    """A sourced word, as the name of a packet form."""

    value: str
    source: Source

    @property
    def text(self) -> str:
        """The word."""
        return self.value


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One card and its ports.

    Rates are per card and direction. The rates of a named topology win over `scaleup_rate` and
    `scaleout_rate`, which stand for systems that epsim has no graph of.
    """

    name: str
    title: str
    scaleup_rate: Quantity = _declared(Parameter(dimension="rate", meaning="nominal scale-up rate", least=1))
    scaleup_domain: Quantity = _declared(
        Parameter(dimension="count", meaning="cards of one scale-up domain", least=1, whole=True)
    )
    scaleout_rate: Quantity = _declared(
        Parameter(dimension="rate", meaning="nominal scale-out rate; 0 = none")
    )
    line_efficiency: Quantity = _declared(
        Parameter(dimension="ratio", meaning="flit capacity per nominal rate", least=1e-3, most=1.1)
    )
    packet_form: Text = field(metadata={"choices": (*FORMS, "none")})
    packet_payload: Quantity = _declared(
        Parameter(dimension="size", meaning="payload of a full packet (MTU)", least=1, most=9600, whole=True)
    )
    packets_per_taack: Quantity = _declared(
        Parameter(dimension="count", meaning="packets that one TAACK acknowledges", most=32, whole=True)
    )
    payload_efficiency: Quantity = _declared(
        Parameter(
            dimension="ratio", meaning="payload share where no packet form is known", least=1e-3, most=1
        )
    )
    hbm_rate: Quantity = _declared(Parameter(dimension="rate", meaning="peak memory rate", least=1))
    num_aivs: Quantity = _declared(
        Parameter(dimension="count", meaning="vector cores that a kernel may use", least=1, whole=True)
    )


@dataclass(frozen=True, kw_only=True)
class Software:
    """A library version on a firmware: what it makes of the hardware."""

    name: str
    title: str
    row_unit_dispatch: Text = field(metadata={"choices": ("rank", "expert")})
    row_unit_combine: Text = field(metadata={"choices": ("rank", "expert")})
    wire_efficiency: Quantity = _declared(
        Parameter(dimension="ratio", meaning="share of the payload limit that is reached", least=1e-3, most=2)
    )
    hbm_efficiency: Quantity = _declared(
        Parameter(dimension="ratio", meaning="effective memory rate over the peak", least=1e-3, most=8)
    )
    fanout_knee: Quantity = _declared(
        Parameter(dimension="count", meaning="ranks beyond which the wire slows down", least=1)
    )
    fanout_slope_dispatch: Quantity = _declared(
        Parameter(
            dimension="ratio", meaning="wire time added per doubling beyond the knee", least=-1, most=10
        )
    )
    fanout_slope_combine: Quantity = _declared(
        Parameter(
            dimension="ratio", meaning="wire time added per doubling beyond the knee", least=-1, most=10
        )
    )
    launch_time: Quantity = _declared(Parameter(dimension="time", meaning="kernel launch and core set-up"))
    worker_time: Quantity = _declared(Parameter(dimension="time", meaning="start of dispatch's SIMT worker"))
    barrier_time: Quantity = _declared(Parameter(dimension="time", meaning="one barrier of 8 ranks"))
    barrier_time_per_doubling: Quantity = _declared(
        Parameter(dimension="time", meaning="added to a barrier per doubling of ranks")
    )
    post_time: Quantity = _declared(Parameter(dimension="time", meaning="one lane posts one descriptor"))
    post_lanes_dispatch: Quantity = _declared(
        Parameter(dimension="count", meaning="lanes of an AIV that post in dispatch", least=1, whole=True)
    )
    post_lanes_combine: Quantity = _declared(
        Parameter(dimension="count", meaning="lanes of an AIV that post in combine", least=1, whole=True)
    )
    rows_per_descriptor_dispatch: Quantity = _declared(
        Parameter(dimension="count", meaning="most rows of one dispatch descriptor", least=1, whole=True)
    )
    issue_overlap: Quantity = _declared(
        Parameter(dimension="ratio", meaning="share of posting that hides behind the data", most=1)
    )
    used_aivs: Quantity = _declared(
        Parameter(dimension="count", meaning="most AIVs that the kernels use", least=1, whole=True)
    )
    staging_rate_dispatch: Quantity = _declared(
        Parameter(dimension="rate", meaning="rows copied by one AIV before posting; 0 = no staging")
    )
    staging_rate_combine: Quantity = _declared(
        Parameter(dimension="rate", meaning="rows copied by one AIV before posting; 0 = no staging")
    )
    calibrated_hardware: Text = field(metadata={"choices": ()})
    calibrated_ranks_least: Quantity = _declared(
        Parameter(dimension="count", meaning="fewest ranks of the measurements; 0 = none", whole=True)
    )
    calibrated_ranks_most: Quantity = _declared(
        Parameter(dimension="count", meaning="most ranks of the measurements", whole=True)
    )
    calibrated_tokens_least: Quantity = _declared(
        Parameter(dimension="count", meaning="fewest tokens per rank that the fit may speak for", whole=True)
    )
    calibrated_operations: Text = field(metadata={"choices": ()})
    calibrated_hidden_least: Quantity = _declared(
        Parameter(dimension="count", meaning="smallest hidden size of the measurements", whole=True)
    )
    calibrated_hidden_most: Quantity = _declared(
        Parameter(dimension="count", meaning="largest hidden size of the measurements", whole=True)
    )
    calibrated_topk_least: Quantity = _declared(
        Parameter(dimension="count", meaning="smallest top-k of the measurements", whole=True)
    )
    calibrated_topk_most: Quantity = _declared(
        Parameter(dimension="count", meaning="largest top-k of the measurements", whole=True)
    )
    calibrated_error: Quantity = _declared(
        Parameter(dimension="ratio", meaning="error to expect inside the fitted domain", most=10)
    )
    calibrated_digest: Text = field(metadata={"choices": ()})


Profile = TypeVar("Profile", Hardware, Software)
_KINDS: Mapping[str, type[Hardware] | type[Software]] = {"hardware": Hardware, "software": Software}


def entries(profile: Hardware | Software) -> Iterator[tuple[str, Quantity | Text, str]]:
    """Yield (name, entry, meaning) of a profile in declaration order."""
    for spec in fields(profile):
        value = getattr(profile, spec.name)
        if isinstance(value, Quantity | Text):
            declaration = spec.metadata.get("parameter")
            choices = ", ".join(spec.metadata.get("choices") or ("a name",))
            yield spec.name, value, declaration.meaning if declaration else f"one of {choices}"


def parameter_names(kind: type[Any]) -> tuple[str, ...]:
    """Names of all parameters of a kind of profile."""
    return tuple(spec.name for spec in fields(kind) if spec.metadata)


def packaged_profiles() -> dict[str, str]:
    """Return name -> kind of every profile that comes with epsim."""
    found = {}
    for entry in resources.files("epsim.profiles").iterdir():
        kind, dashes, name = entry.name.removesuffix(".toml").partition("--")
        if dashes and entry.name.endswith(".toml"):
            found[name] = kind
    return dict(sorted(found.items(), key=lambda item: (item[1], item[0])))


def hardware_profile(name_or_path: str) -> Hardware:
    """Load a hardware profile by name or from a .toml file.

    Raises:
      InputError: unknown name, unreadable file, or an entry that breaks a rule.
    """
    return _build(name_or_path, Hardware) if _is_file(name_or_path) else _packaged_hardware(name_or_path)


def software_profile(name_or_path: str) -> Software:
    """Load a software profile by name or from a .toml file; errors as `hardware_profile`."""
    return _build(name_or_path, Software) if _is_file(name_or_path) else _packaged_software(name_or_path)


def _is_file(name_or_path: str) -> bool:
    return name_or_path.endswith(".toml")


# A user's file may change between two calls; what comes with the package does not.
@lru_cache(maxsize=64)
def _packaged_hardware(name: str) -> Hardware:
    return _build(name, Hardware)


@lru_cache(maxsize=64)
def _packaged_software(name: str) -> Software:
    return _build(name, Software)


def _build(name_or_path: str, kind: type[Profile], depth: int = 0) -> Profile:
    word = kind.__name__.lower()
    if depth > 4:
        raise InputError(f"{word} profile", name_or_path, "has a chain of bases that is too long, or a loop")
    table = _table(name_or_path, word)
    for key in table:
        if key not in _FILE_KEYS:
            raise InputError(
                f"{name_or_path}: {key}", table[key], f"is no key of a profile; {_near(key, _FILE_KEYS)}"
            )
    if table.get("kind", word) != word:
        raise InputError(f"{name_or_path}: kind", table["kind"], f"must be {word} here")
    parameters = table.get("parameters", {})
    if not isinstance(parameters, dict):
        raise InputError(f"{name_or_path}: parameters", parameters, "must be a table")
    read = {key: _entry(f"{name_or_path}: {key}", key, raw, kind) for key, raw in parameters.items()}
    head = {key: _string(f"{name_or_path}: {key}", table[key]) for key in ("name", "title") if key in table}
    if "base" in table:
        base = _build(_string(f"{name_or_path}: base", table["base"]), kind, depth + 1)
        return _with(base, {**head, **read})
    missing = [
        name for name in (*parameter_names(kind), "name", "title") if name not in read and name not in head
    ]
    if missing:
        raise InputError(f"{name_or_path}: {missing[0]}", "missing", "must be given, or a base profile named")
    values: dict[str, Any] = {**head, **read}
    return kind(**values)


def _with(profile: Profile, values: Mapping[str, object]) -> Profile:
    """Replace entries by name; `read_entry` has checked names and values."""
    changes: dict[str, Any] = dict(values)
    return replace(profile, **changes)


def _table(name_or_path: str, word: str) -> dict[str, Any]:
    if _is_file(name_or_path):
        try:
            raw = read_regular(name_or_path)
        except OSError as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise InputError(f"{word} profile", name_or_path, f"cannot be read: {reason}") from None
    else:
        known = [name for name, kind in packaged_profiles().items() if kind == word]
        if name_or_path not in known:
            rule = f"must be a .toml file or one of {', '.join(known)}"
            raise InputError(f"{word} profile", name_or_path, rule)
        raw = resources.files("epsim.profiles").joinpath(f"{word}--{name_or_path}.toml").read_bytes()
    try:
        return tomllib.loads(raw.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{word} profile", name_or_path, f"must be TOML: {error}") from None


def _string(where: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(where, value, "must be a text")
    return value


def _entry(where: str, key: str, raw: object, kind: type[Hardware] | type[Software]) -> Quantity | Text:
    if not isinstance(raw, dict) or set(raw) != _ENTRY_KEYS:
        raise InputError(where, raw, "must be a table with value, confidence and source")
    try:
        source = Source(raw["confidence"], _string(f"{where}.source", raw["source"]))
    except TopologyError as error:
        raise InputError(f"{where}: {error.field}", error.value, error.rule) from None
    return read_entry(where, key, raw["value"], kind, source)


def read_entry(
    where: str, key: str, value: object, kind: type[Hardware] | type[Software], source: Source
) -> Quantity | Text:
    """Read one parameter of a kind of profile.

    Raises:
      InputError: no such parameter, or the value breaks its rule.
    """
    specs = {spec.name: spec for spec in fields(kind) if spec.metadata}
    if key not in specs:
        raise InputError(
            where, value, f"is no parameter of a {kind.__name__.lower()} profile; {_near(key, specs)}"
        )
    if "choices" in specs[key].metadata:
        choices = specs[key].metadata["choices"]
        if choices and value not in choices:
            raise InputError(where, value, f"must be one of {', '.join(choices)}")
        return Text(value=_string(where, value), source=source)
    if not isinstance(value, str | int | float):
        raise InputError(where, value, "must be a number, or a text with a unit")
    declaration: Parameter = specs[key].metadata["parameter"]
    return declaration.read(where, value, source)


def _near(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(known), n=1)
    return f"did you mean {close[0]}?" if close else "`epsim profiles NAME` lists them"


def override(
    hardware: Hardware, software: Software, settings: Mapping[str, str | float]
) -> tuple[Hardware, Software]:
    """Replace single parameters by what the user says.

    Args:
      hardware: profile to start from.
      software: profile to start from.
      settings: parameter name -> value with unit, e.g. {"hbm_rate": "3.2TB/s", "fanout_slope_combine": 0}.

    Returns:
      both profiles, changed entries marked as given.

    Raises:
      InputError: no profile has such a parameter, or the value breaks its rule.
    """
    for key, value in settings.items():
        source = given(f"set by the user: {key}={value}")
        if key in parameter_names(Hardware):
            hardware = _with(hardware, {key: read_entry(key, key, value, Hardware, source)})
        elif key in parameter_names(Software):
            software = _with(software, {key: read_entry(key, key, value, Software, source)})
        else:
            every = (*parameter_names(Hardware), *parameter_names(Software))
            raise InputError("parameter", key, f"is in no profile; {_near(key, every)}")
    return hardware, software


def numbers_digest(hardware: Hardware, software: Software) -> str:
    """Return a fingerprint of every number that a prediction reads, to notice a change after a fit.

    Names, sources and what a fit says of itself (`calibrated_*`) do not count.
    """
    lines = [
        f"{type(profile).__name__}.{name}={_exact_word(entry)}"
        for profile in (hardware, software)
        for name, entry, _ in entries(profile)
        if not name.startswith("calibrated_")
    ]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def _exact_word(entry: Quantity | Text) -> str:
    return float(entry.value).hex() if isinstance(entry, Quantity) else entry.value


def profile_toml(profile: Hardware | Software) -> str:
    """Write a profile as the TOML text that loads to the same profile."""
    import tomli_w

    parameters = {
        name: {
            "value": _exact_text(entry),
            "confidence": entry.source.kind,
            "source": entry.source.text,
        }
        for name, entry, _ in entries(profile)
    }
    head = {"kind": type(profile).__name__.lower(), "name": profile.name, "title": profile.title}
    return tomli_w.dumps({**head, "parameters": parameters})


def _exact_text(entry: Quantity | Text) -> str | float:
    """Write a value so that it reads back to the same number: all digits, a base unit if need be."""
    if isinstance(entry, Text):
        return entry.value
    if entry.dimension in ("count", "ratio"):
        return int(entry.value) if entry.value == int(entry.value) else entry.value
    unit = {"rate": "B/s", "size": "B", "time": "s"}[entry.dimension]
    text = entry.text
    return text if _same(text, entry) else f"{entry.value!r}{unit}"


def _same(text: str, entry: Quantity) -> bool:
    declaration = Parameter(dimension=entry.dimension, meaning="")
    return declaration.read("value", text, entry.source).value == entry.value
