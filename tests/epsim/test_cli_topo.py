"""`epsim topo`: what it prints and writes, its exit codes, and that bad input writes nothing."""

import json
import pickle
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from epsim.cli.topo import app
from epsim.errors import InputError
from epsim.platform.systems import PRESETS, load_system
from topology.errors import TopologyError
from topology.hccl_graph import FabricRates
from topology.ranktable import read_rank_table
from topology.topojson import read_topo_file

DATA = Path(__file__).parents[1] / "topology" / "data"
TABLE, TOPO = DATA / "eight_cards.ranktable.json", DATA / "eight_cards.topo.json"
TWO_TABLE, TWO_TOPO = DATA / "two_servers.ranktable.json", DATA / "two_servers.topo.json"


def run(*args) -> int:
    """Run a command in this process; its exit code."""
    return app([str(arg) for arg in args], exit_on_error=False, result_action="return_value") or 0


@pytest.fixture
def output(capsys):
    """Run a command; give its exit code and what it prints."""

    def call(*args):
        code = run(*args)
        return code, capsys.readouterr().out

    return call


def test_list_names_every_preset(output):
    code, text = output("list")
    assert code == 0
    for preset in PRESETS.values():
        assert preset.name + ("[:N]" if preset.takes_number else "") in text
    _, text = output("list", "--json")
    assert [row["name"] for row in json.loads(text)] == list(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds_with_its_number_of_cards_and_has_no_finding(name):
    system = load_system(name)
    assert system.topology.num_npus == PRESETS[name].num_npus
    assert system.findings() == []


@pytest.mark.parametrize(
    ("name", "num_npus"), [("ubl128:1", 1), ("ubl128-mesh:5", 5), ("clos:300", 300), ("mesh:4", 4)]
)
def test_a_number_of_cards_follows_a_colon(name, num_npus):
    assert load_system(name).topology.num_npus == num_npus


def test_show_prints_figures_and_their_sources(output):
    code, text = output("show", "ubl128-mesh")
    assert code == 0
    rows = {line.split("  ")[0].strip(): line.split() for line in text.splitlines() if "  " in line.strip()}
    assert rows["rate per card"][-2:] == ["350GB/s", "400GB/s"]
    assert rows["planes"][-2:] == ["1", "8"]
    assert "netlayer 1 ubl-up (50GB/s, 250ns): assumed" in text
    assert "port_rate: " in text


def test_show_as_json_has_exact_integers(output):
    _, text = output("show", "clos:1024", "--json")
    facts = json.loads(text)
    assert (facts["kind"], facts["num_npus"], facts["num_switches"]) == ("preset", 1024, 76)
    assert [layer["npu_bytes_per_s_max"] for layer in facts["layers"]] == [400_000_000_000, 50_000_000_000]
    assert all(c["source"]["kind"] for layer in facts["layers"] for c in layer["classes"])


def test_a_rank_table_finds_its_topo_file_beside_it(output):
    _, text = output("show", TABLE, "--port-rate", "100GB/s", "--json")
    facts = json.loads(text)
    assert facts["kind"] == "topo file and rank table"
    assert [layer["npu_bytes_per_s_max"] for layer in facts["layers"]] == [700 * 10**9, 600 * 10**9]
    assert facts["layers"][0]["classes"][0]["source"]["text"].startswith("port_rate: 100GB/s")


def test_a_topo_file_alone_is_one_server(output):
    _, text = output("show", TWO_TOPO, "--json")
    assert json.loads(text)["num_npus"] == 2
    _, text = output("show", TWO_TOPO, "--rank-table", TWO_TABLE, "--json")
    assert json.loads(text)["num_npus"] == 4


def test_check_says_ok_with_exit_code_0(output):
    code, text = output("check", TWO_TABLE, "--topo-file", TWO_TOPO)
    assert (code, text) == (0, f"{TWO_TABLE}: OK, 0 errors, 0 warnings\n")


LOST_PLANE = 'kind = "ubl128"\nnum_npus = 8\n[[changes]]\nfrom = "npu3"\nto = "sw5"\nfailed = true\n'


def test_check_names_errors_and_exits_with_1(output, tmp_path):
    (tmp_path / "lab.toml").write_text(LOST_PLANE)
    code, text = output("check", tmp_path / "lab.toml")
    assert code == 1
    assert "error: plane-missing: npu3 has no link out in plane 5 of netlayer 1" in text
    assert "FAILED" in text.splitlines()[-1]
    code, text = output("check", tmp_path / "lab.toml", "--json")
    report = json.loads(text)
    assert code == 1
    assert report["errors"] == sum(row["severity"] == "error" for row in report["findings"]) > 0


def test_warnings_alone_exit_with_0(output, tmp_path):
    table = json.loads(TWO_TABLE.read_text())
    table["rank_list"], table["rank_count"] = table["rank_list"][:2], 2
    table["rank_list"][1]["level_list"][0]["net_instance_id"] = "another pod"
    (tmp_path / "table.json").write_text(json.dumps(table))
    code, text = output("check", tmp_path / "table.json", "--topo-file", TWO_TOPO)
    assert code == 0
    assert "warning: server-split: " in text


def test_check_limits_findings_per_rule(output, tmp_path):
    changes = "".join(f'[[changes]]\nfrom = "npu{i}"\nto = "sw0"\nfailed = true\n' for i in range(5))
    (tmp_path / "lab.toml").write_text(f'kind = "ubl128"\nnum_npus = 8\n{changes}')
    _, text = output("check", tmp_path / "lab.toml", "--limit", "2")
    lines = [line for line in text.splitlines() if "plane-missing" in line]
    assert len(lines) == 2
    assert re.search(r"\(and \d+ more\)", lines[-1])


def test_a_preset_becomes_a_table_with_its_topo_file_and_back(output, tmp_path):
    table, topo, toml = tmp_path / "a" / "ranktable.json", tmp_path / "topo.json", tmp_path / "lab.toml"
    table.parent.mkdir()
    code, text = output("convert", "ubl128-mesh:16", table, "--topo-out", topo, "--json")
    assert (code, json.loads(text)["written"]) == (0, [str(topo), str(table)])
    assert read_rank_table(table).topo_file_path == "../topo.json"
    assert len(read_topo_file(topo).peers) == 8
    output("convert", table, toml)
    original, back = load_system("ubl128-mesh:16").topology, load_system(str(toml)).topology
    assert (back.num_npus, back.num_links, back.num_switches) == (16, original.num_links, 8)
    assert (back.npu_rate(0) == original.npu_rate(0)).all()
    assert (back.npu_rate(1) == original.npu_rate(1)).all()


def test_a_preset_becomes_a_short_cluster_file(output, tmp_path):
    output("convert", "clos:4096", tmp_path / "lab.toml")
    assert (tmp_path / "lab.toml").read_text() == 'kind = "clos"\nnum_npus = 4096\n'


@pytest.mark.parametrize("path", [TABLE, TOPO], ids=["ranktable", "topo"])
def test_a_file_that_keeps_its_format_keeps_every_field(output, tmp_path, path):
    output("convert", path, tmp_path / path.name, *(["--to", "topo"] if path == TOPO else []))
    written = (tmp_path / path.name).read_text()
    assert json.dumps(json.loads(written)) == json.dumps(json.loads(path.read_text()))


@pytest.mark.parametrize(
    ("suffix", "start"), [(".svg", "<svg"), (".dot", "graph topology"), (".SVG", "<svg")]
)
def test_draw_writes_what_the_name_asks_for(output, tmp_path, suffix, start):
    code, text = output("draw", "ubl128:16", "--out", tmp_path / f"x{suffix}")
    assert (code, text) == (0, f"wrote {tmp_path / f'x{suffix}'}\n")
    written = (tmp_path / f"x{suffix}").read_text()
    assert written.startswith(start)
    assert suffix.lower() != ".svg" or ET.fromstring(written) is not None


BAD = [
    (["show", "ubl129"], InputError, "system is 'ubl129': must be one of ubl128, "),
    (["show", "ubl128:"], InputError, "needs a number of cards after the colon, as in ubl128:128"),
    (["show", "ubl128:-4"], InputError, "needs a number of cards after the colon"),
    (["show", "ubl128:1e3"], InputError, "needs a number of cards after the colon"),
    (["show", "ubl128:9999999999"], InputError, "needs a number of cards after the colon"),
    (["show", "ubl128:0"], TopologyError, "num_npus is 0"),
    (["show", "ubl128:129"], TopologyError, "num_npus is 129"),
    (["show", "clos:262145"], TopologyError, "num_npus is 262145"),
    (["show", "mesh:9"], TopologyError, "num_npus is 9"),
    (["show", "mesh8:8"], InputError, "mesh8 has a fixed number of cards"),
    (["show", "missing.toml"], InputError, "file is 'missing.toml': cannot be read: No such file"),
    (["show", "missing.json"], TopologyError, "file is 'missing.json': cannot be read: No such file"),
    (["show", "{dir}/latin.toml"], InputError, "must be UTF-8 text"),
    (["show", "{dir}/pickle.json"], TopologyError, "this is a pickle, and nothing is ever unpickled"),
    (["show", "{dir}/other.json"], TopologyError, "must have a rank_list (rank table) or an edge_list"),
    (["show", "{dir}/cut.json"], TopologyError, "must be JSON; it ends early"),
    (["show", "{dir}/kind.toml"], TopologyError, "kind is 'ring': must be one of"),
    (["show", str(TWO_TABLE)], TopologyError, "needs the topo file beside the rank table"),
    (["show", "ubl128", "--port-rate", "400Gbps"], InputError, "goes with an HCCL file (.json)"),
    (["show", "ubl128", "--topo-file", str(TOPO)], InputError, "topo file is "),
    (["show", str(TOPO), "--topo-file", str(TOPO)], InputError, "is one too many"),
    (["show", str(TABLE), "--rank-table", str(TABLE)], InputError, "is one too many"),
    (["show", str(TOPO), "--port-rate", "400"], TopologyError, "port rate is '400': needs a unit"),
    (["show", str(TOPO), "--cable", "5m"], TopologyError, "cable is '5m': must be a time"),
    (["check", "ubl128", "--limit", "0"], InputError, "limit is 0: must be at least 1"),
    (["convert", "ubl128", "{dir}/out.json"], InputError, "does not tell its format; add --to"),
    (["convert", "ubl128", "{dir}/rank_and_topo.json"], InputError, "does not tell its format"),
    (["convert", "ubl128", "{dir}/out.yaml"], InputError, "does not tell its format"),
    (["convert", "ubl128", "{dir}/topo.json", "--topo-out", "{dir}/t.json"], InputError, "goes with a"),
    (["convert", "clos:262144", "{dir}/ranktable.json"], TopologyError, "num_npus is 262144: must be"),
    (["convert", "ubl128", "{dir}/no/lab.toml"], InputError, "cannot be written: No such file or directory"),
    (["draw", "ubl128", "--out", "{dir}/out.png"], InputError, "must end in .svg or .dot"),
    (["draw", "ubl129", "--out", "{dir}/out.svg"], InputError, "system is 'ubl129'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "error", "message"),
    BAD,
    ids=lambda value: " ".join(value)[-40:] if isinstance(value, list) else None,
)
def test_bad_input_is_refused_and_nothing_is_written(tmp_path, args, error, message):
    (tmp_path / "latin.toml").write_bytes(b'kind = "\xe9"')
    (tmp_path / "pickle.json").write_bytes(pickle.dumps({"version": "2.0"}))
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "cut.json").write_text('{"rank_list": [')
    (tmp_path / "kind.toml").write_text('kind = "ring"')
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(error, match=re.escape(message)) as refused:
        run(*(arg.replace("{dir}", str(tmp_path)) for arg in args))
    assert "\n" not in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_rates_are_part_of_an_hccl_system():
    system = load_system(str(TOPO), rates=FabricRates(port_rate="25GB/s"))
    assert set(system.topology.npu_rate(0).tolist()) == {7 * 25 * 10**9}


def test_the_command_is_found_without_numpy():
    code = "import sys, epsim.cli.topo; sys.exit(bool({'numpy', 'msgspec'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20)


@pytest.mark.parametrize("command", ["show", "check", "convert", "draw"])
def test_help_teaches_with_an_example(output, command):
    _, text = output(command, "--help")
    assert f" • epsim topo {command} " in text


def test_help_explains_how_to_name_a_system(output):
    _, text = output("--help")
    assert all(word in text for word in ("ubl128", "clos:4096", "lab.toml", ".json"))
