"""Profiles: every packaged number is sourced, text and numbers round-trip, overrides and bases keep rules."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsim.errors import InputError
from epsim.platform.presets import MODEL_ALIASES, PROFILE_SYSTEMS, model_shape, model_shapes
from epsim.platform.profile import (
    Hardware,
    Software,
    entries,
    hardware_profile,
    override,
    packaged_profiles,
    parameter_names,
    profile_toml,
    software_profile,
)
from epsim.platform.quantity import Quantity
from tests.epsim.cases import EPS, HARDWARE, SOFTWARE

LOADERS = {"hardware": hardware_profile, "software": software_profile}
PACKAGED = sorted(packaged_profiles().items())


def load(name, kind):
    """Load a profile of either kind."""
    return LOADERS[kind](name)


def test_every_kind_of_profile_is_packaged():
    """The systems that the issue asks for are all there."""
    assert {"950dt", "950pr", "910c", "a3", "h800-cx7", "sm100-nvlink"} <= set(packaged_profiles())
    assert {"deepep-ascend-2026-09-poc", "ideal"} <= set(packaged_profiles())


@pytest.mark.parametrize(("name", "kind"), PACKAGED)
def test_every_packaged_number_has_a_source(name, kind):
    """No constant without an origin, and none that a calibration still has to fill in."""
    profile = load(name, kind)
    assert profile.name == name
    assert [key for key, _, _ in entries(profile)] == list(parameter_names(type(profile)))
    for key, entry, meaning in entries(profile):
        assert entry.source.text.strip(), key
        assert "placeholder" not in entry.source.text, key
        assert meaning


@pytest.mark.parametrize(("name", "kind"), PACKAGED)
def test_a_profile_round_trips_through_its_text(name, kind, tmp_path):
    """`profile_toml` writes what loads to the same profile: every digit, source and confidence."""
    profile = load(name, kind)
    (tmp_path / "copy.toml").write_text(profile_toml(profile))
    assert load(str(tmp_path / "copy.toml"), kind) == profile


EXTREME = st.floats(1e-9, 1e15, allow_subnormal=False)


@given(rate=EXTREME, ratio=st.floats(1e-3, 8), time=st.floats(1e-12, 1e3))
def test_any_value_round_trips_through_the_text(rate, ratio, time):
    """Also values with all their bits, as a fit finds them."""
    soft = replace(
        SOFTWARE,
        staging_rate_combine=replace(SOFTWARE.staging_rate_combine, value=rate),
        hbm_efficiency=replace(SOFTWARE.hbm_efficiency, value=ratio),
        post_time=replace(SOFTWARE.post_time, value=time),
    )
    parameters = tomllib.loads(profile_toml(soft))["parameters"]
    _, back = override(HARDWARE, soft, {key: parameters[key]["value"] for key in parameter_names(Software)})
    assert back.hbm_efficiency.value == ratio
    assert abs(back.staging_rate_combine.value - rate) <= max(1, rate * EPS)  # rates are whole bytes
    assert abs(back.post_time.value - time) <= max(1e-12, time * EPS)  # times are whole picoseconds


def test_an_override_replaces_one_number_and_says_so():
    """The changed entry is marked as given; all others are the same objects."""
    hard, soft = override(HARDWARE, SOFTWARE, {"hbm_rate": "3.2TB/s", "fanout_slope_combine": 0})
    assert (hard.hbm_rate.value, soft.fanout_slope_combine.value) == (3.2e12, 0.0)
    assert hard.hbm_rate.source.kind == soft.fanout_slope_combine.source.kind == "given"
    assert replace(hard, hbm_rate=HARDWARE.hbm_rate) == HARDWARE
    assert replace(soft, fanout_slope_combine=SOFTWARE.fanout_slope_combine) == SOFTWARE


def test_no_parameter_is_in_both_kinds():
    """`--set NAME=` would be ambiguous."""
    assert set(parameter_names(Hardware)) & set(parameter_names(Software)) == set()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("scaleup_rate", "3.2Tbps", 400e9),
        ("scaleup_rate", "400GB/s", 400e9),
        ("packet_payload", "2KiB", 2048.0),
        ("launch_time", "1900ns", 1.9e-6),
        ("issue_overlap", "50%", 0.5),
        ("num_aivs", 56, 56.0),
        ("packet_form", "none", "none"),
    ],
)
def test_values_are_read_with_their_units(name, text, value):
    """Bits become bytes only here, a percentage is a ratio, a word must be a known one."""
    hard, soft = override(HARDWARE, SOFTWARE, {name: text})
    entry = getattr(hard if name in parameter_names(Hardware) else soft, name)
    assert entry.value == value


BAD_VALUES = [
    ("hbm_rate", "4TB", "must be a rate"),
    ("hbm_rate", 4e12, "needs a unit"),
    ("hbm_rate", "0B/s", "must be at least 1"),
    ("scaleup_rate", "-400GB/s", "scaleup_rate is '-400GB/s'"),
    ("num_aivs", 2.5, "must be a whole number"),
    ("num_aivs", 0, "must be at least 1"),
    ("num_aivs", True, "must be a plain number"),
    ("num_aivs", "64 cores", "must be a plain number"),
    ("issue_overlap", 1.01, "must be at most 1"),
    ("hbm_efficiency", float("nan"), "must be at least"),
    ("hbm_efficiency", float("inf"), "finite"),
    ("num_aivs", float("nan"), "num_aivs is nan"),
    ("num_aivs", float("inf"), "num_aivs is inf"),
    ("num_aivs", "1e999", "num_aivs is inf"),
    ("launch_time", "2GB/s", "must be a time"),
    ("packet_form", "ctp9", "must be one of"),
    ("packet_form", 7, "must be one of"),
    ("hbm_raet", "4TB/s", "did you mean hbm_rate?"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "message"), BAD_VALUES, ids=[f"{n}={v}" for n, v, _ in BAD_VALUES])
def test_a_value_that_breaks_its_rule_is_refused(name, value, message):
    """One sentence with the parameter's name and the rule."""
    with pytest.raises(InputError) as refused:
        override(HARDWARE, SOFTWARE, {name: value})
    assert message in str(refused.value)
    assert name in str(refused.value)


ENTRY = '[parameters.hbm_rate]\nvalue = "3TB/s"\nconfidence = "given"\nsource = "a test of ours"\n'


def write(folder, name, text):
    """Write a profile file; return its path as a text."""
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_file_with_a_base_gives_only_what_differs(tmp_path):
    """The rest comes from the base, sources included; bases may chain."""
    first = write(tmp_path, "first.toml", 'base = "950dt"\nname = "mine"\n' + ENTRY)
    second = write(tmp_path, "second.toml", f'base = "{first}"\ntitle = "Mine, renamed"\n')
    loaded = hardware_profile(second)
    assert (loaded.name, loaded.title, loaded.hbm_rate.value) == ("mine", "Mine, renamed", 3e12)
    same = {"name": "mine", "title": "Mine, renamed", "hbm_rate": loaded.hbm_rate}
    assert loaded == replace(hardware_profile("950dt"), **same)


BAD_FILES = [
    ("base = \"{path}\"\n", "a loop"),
    ("base = \"no-such\"\n", "must be a .toml file or one of"),
    ("base = 7\n", "must be a text"),
    ("name = \"x\"\ntitle = \"y\"\n", "must be given, or a base profile named"),
    ("base = \"950dt\"\nparameter = 1\n", "did you mean parameters?"),
    ("base = \"950dt\"\nkind = \"software\"\n", "must be hardware here"),
    ("base = \"950dt\"\nparameters = 1\n", "must be a table"),
    ("base = \"950dt\"\n[parameters]\nhbm_rate = \"3TB/s\"\n", "a table with value, confidence and source"),
    ("base = \"950dt\"\n" + ENTRY.replace("given", "certain"), "must be one of official"),
    ("base = \"950dt\"\n" + ENTRY.replace("a test of ours", ""), "must be a text"),
    ("base = \"950dt\"\n" + ENTRY.replace("hbm_rate", "post_time"), "is no parameter of a hardware profile"),
    ("base = \"950dt\"\n" + ENTRY.replace('"3TB/s"', "[3]"), "must be a number, or a text with a unit"),
    ("base = \"950dt\"\n" + ENTRY.replace("3TB/s", "3TB"), "must be a rate"),
    ("base = ", "must be TOML"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD_FILES, ids=[m for _, m in BAD_FILES])
def test_a_file_that_breaks_a_rule_is_refused(tmp_path, text, message):
    """One sentence that names the file or the field."""
    path = str(tmp_path / "mine.toml")
    write(tmp_path, "mine.toml", text.replace("{path}", path))
    with pytest.raises(InputError) as refused:
        hardware_profile(path)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"\xff\xfe", None], ids=["not text", "missing"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path, content):
    """Bytes that are no text, or no file at all."""
    path = tmp_path / "mine.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"must be TOML|cannot be read"):
        software_profile(str(path))


def test_every_model_shape_is_sourced_and_every_alias_leads_to_one():
    """Shapes are facts about models, so each says where it was read."""
    for name, shape in model_shapes().items():
        assert shape.name == name
        assert shape.source.text.strip()
        assert 1 <= shape.num_topk <= shape.num_experts
    assert {model_shape(alias).name for alias in MODEL_ALIASES} <= set(model_shapes())
    with pytest.raises(InputError, match="must be one of benchmark"):
        model_shape("gpt-2")


def test_profile_systems_name_packaged_profiles():
    """Each system that has no graph leads to two profiles of the package."""
    for system in PROFILE_SYSTEMS.values():
        assert packaged_profiles()[system.hardware] == "hardware"
        assert packaged_profiles()[system.software] == "software"


def test_packaged_names_are_those_inside_the_files():
    """A copy under another name would be found by neither."""
    folder = Path(__file__).parents[2] / "epsim" / "profiles"
    on_disk = {path.name for path in folder.glob("*--*.toml")}
    assert on_disk == {f"{kind}--{name}.toml" for name, kind in PACKAGED}
    assert all(isinstance(entry, Quantity) or entry.value for _, entry, _ in entries(HARDWARE))
