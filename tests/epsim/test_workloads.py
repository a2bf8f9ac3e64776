"""What is predicted for: laws, tables and manifests, and that nothing a user says is ignored in silence."""

from pathlib import Path

import pytest

import epsim
from epsim.cli import run
from epsim.errors import InputError
from epsim.platform.profile import hardware_profile, numbers_digest, profile_toml, software_profile
from reference.config import EPConfig
from reference.routing.files import write_routing
from reference.routing.generate import generate_topk
from reference.routing.manifest import manifest_bytes, parse_manifest

SMALL = {"ep": 4, "num_experts": 16, "num_topk": 3, "hidden": 256}


def table(tokens: int = 40):
    """Return a routing of four ranks."""
    config = EPConfig(ep_size=4, num_experts=16, num_topk=3, hidden=256, num_max_tokens_per_rank=tokens)
    return generate_topk(config, "zipf:0.6", tokens_per_rank=tokens, seed=3)


def test_a_saved_workload_gives_the_same_prediction():
    """The manifest holds everything that decides the routing."""
    first = epsim.predict(**SMALL, tokens=64, routing="zipf:0.6", seed=9)
    again = epsim.predict(workload=parse_manifest(manifest_bytes(first.workloads[0])))
    assert list(again) == list(first)


@pytest.mark.parametrize("change", [{"seed": 10}, {"tokens": 65}, {"routing": "zipf:0.7"}, {"dtype": "bf16"}])
def test_the_fingerprint_notices_every_change(change):
    """Equal workloads have equal fingerprints, others do not."""
    options = {**SMALL, "tokens": 64, "routing": "zipf:0.6", "seed": 9}
    fingerprint = epsim.predict(**options)[0].fingerprint
    assert epsim.predict(**options)[0].fingerprint == fingerprint
    assert epsim.predict(**{**options, **change})[0].fingerprint != fingerprint


def test_a_table_brings_its_own_token_count(tmp_path: Path):
    """The capacity of the group is that of the dump, unless the user says another."""
    write_routing(tmp_path / "dump.npz", table(40))
    assert epsim.predict(**SMALL, routing=tmp_path / "dump.npz")[0].tokens_per_rank == 40
    assert epsim.predict(**SMALL, routing=table(40))[0].tokens_per_rank == 40
    assert epsim.predict(**SMALL, routing=table(40), tokens=64)[0].tokens_per_rank == 64


@pytest.mark.parametrize("option", [{"masked_ratio": 0.5}, {"token_counts": "stepped"}, {"draws": 2}])
def test_options_of_a_law_are_refused_with_a_table(option):
    """They would change nothing."""
    with pytest.raises(InputError, match="goes with a law"):
        epsim.predict(**SMALL, routing=table(), **option)


def test_a_folder_named_like_a_law_does_not_replace_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`uniform` is the law; `./uniform` is the folder."""
    (tmp_path / "uniform").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "exact expectation" in epsim.predict(**SMALL, tokens=8)[0].routing
    with pytest.raises(epsim.ConfigError):
        epsim.predict(**SMALL, tokens=8, routing="./uniform")


def test_an_edited_profile_is_no_longer_calibrated(tmp_path: Path):
    """One number changed, name kept: the digest of the fit does not fit any more."""
    path = tmp_path / "950dt.toml"
    path.write_text(profile_toml(hardware_profile("950dt")).replace('"4TB/s"', '"1TB/s"'))
    assert epsim.predict(ep=8)[0].confidence == "calibrated"
    edited = epsim.predict(ep=8, hardware=str(path))[0]
    assert (edited.hardware, edited.confidence) == ("950dt", "not calibrated")


def test_the_digest_sees_numbers_and_not_words():
    """A title is no number; the packaged profile carries the digest of its own numbers."""
    hardware, software = hardware_profile("950dt"), software_profile("deepep-ascend-2026-09-poc")
    assert software.calibrated_digest.value == numbers_digest(hardware, software)
    assert numbers_digest(hardware_profile("950pr"), software) != numbers_digest(hardware, software)


def test_compare_stays_away_from_cases_that_were_not_measured(capsys: pytest.CaptureFixture[str]):
    """Another model, dtype or token count has no published range beside it."""
    for option in (
        ["--model", "v3"],
        ["--dtype", "bf16"],
        ["--tokens", "128"],
        ["--routing", "zipf:1", "--seed", "1"],
    ):
        assert run(["predict", "--ep", "8", "--op", "dispatch", "--compare", *option]) == 0
        assert "published: no measurement of this system" in capsys.readouterr().out


def test_a_damaged_network_is_said(tmp_path: Path):
    """A prediction on a cluster file with a lost cable names the defect and is not calibrated."""
    path = tmp_path / "lost.toml"
    path.write_text('kind = "ubl128"\nnum_npus = 16\n[[changes]]\nfrom = "npu3"\nto = "sw2"\nfailed = true\n')
    found = epsim.predict(str(path), ep=16)[0]
    assert found.confidence == "not calibrated"
    assert any(line.startswith("topology error: ") for line in found.assumptions)


def test_notebook_table_carries_the_caveats():
    """Limits and assumptions are in the HTML as they are in the text."""
    found = epsim.predict("clos:512", ep=256, two_layer="flat", operations=["dispatch"])
    for item in (*found[0].assumptions, "must be at most 255"):
        assert item.split("'")[0] in found._repr_html_()
    assert repr(found) == str(found)
