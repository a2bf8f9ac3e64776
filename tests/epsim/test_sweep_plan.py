"""What a sweep asks: axes, ranges, points and their digests; and what is refused before any work."""

import inspect
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epsim.errors import InputError
from epsim.predict import predict
from epsim.sweep import Sweep, make_plan, read_sweep
from epsim.sweep.plan import MAX_POINTS
from epsim.sweep.ranges import expand, read_words
from epsim.sweep.targets import BY_WORKLOAD, PARAMETERS, TARGETS, evaluate, topology_keys
from reference.routing.manifest import write_manifest
from tests.epsim.sweeping import fake_plan


def test_every_keyword_of_predict_is_a_parameter():
    """A new keyword of predict that no sweep can vary would be noticed by nobody."""
    assert set(PARAMETERS) == set(inspect.signature(predict).parameters) - {"settings"}
    assert set(PARAMETERS) >= BY_WORKLOAD


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("8,16", [8, 16]),
        ("uniform,zipf:0.8", ["uniform", "zipf:0.8"]),
        ("true,0.5,1e3,95%", [True, 0.5, 1000.0, "95%"]),
        ("128..1024/x2", [128, 256, 512, 1024]),
        ("128..1000/x2", [128, 256, 512]),
        ("0..0.2/+0.05", [0.0, 0.05, 0.1, 0.15, 0.2]),
        ("0..1/+0.25", [0.0, 0.25, 0.5, 0.75, 1.0]),
        ("1TB/s..4TB/s/lin4", ["1TB/s", "2TB/s", "3TB/s", "4TB/s"]),
        ("1us..100us/log3,7us", ["1us", "10us", "100us", "7us"]),
        ("8..128/log5", [8, 16, 32, 64, 128]),
        ("1..2/lin3", [1, 2]),
        ("1.0..2.0/lin3", [1.0, 1.5, 2.0]),
        ("../lab.toml,a..b", ["../lab.toml", "a..b"]),
    ],
)
def test_words_and_ranges(text, values):
    """Ends as written, sums exact in decimals; whole ends stay whole, and paths are no ranges."""
    found = read_words("x", text)
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


@pytest.mark.parametrize(
    "text",
    ["1..8", "1..8/2", "8..1/x2", "0..8/x2", "1..8/x1", "1..8/+0", "1us..8ms/x2", "1..8/lin1", "1..8/lin2.5",
     "1..1e9/+1", "1,,2", ""],
)  # fmt: skip
def test_a_range_that_is_none_or_never_ends_is_refused(text):
    with pytest.raises(InputError, match=r"^x is '"):
        read_words("x", text)


@given(st.integers(1, 10**6), st.integers(1, 10**5), st.integers(1, 200), st.floats(0, 0.99))
def test_a_sum_range_is_pythons_range(low, step, num_values, rest):
    """Whatever is left of the last step does not count."""
    high = low + step * (num_values - 1) + int(rest * step)
    assert expand("x", f"{low}..{high}/+{step}") == list(range(low, high + 1, step))


def test_points_are_the_product_with_the_last_axis_fastest(monkeypatch):
    plan = fake_plan(monkeypatch, grid={"ep": [8, 16], "routing": "uniform", "tokens": "1..3/+1"})
    values = [tuple(plan.values(point).values()) for point in plan.point_ids]
    assert values == list(itertools.product((8, 16), ("uniform",), (1, 2, 3)))
    assert len({plan.point_digest(point) for point in plan.point_ids}) == 6


def test_axes_that_walk_together_are_one_dimension(monkeypatch):
    grid = {"ep": [8, 16], "routing": ["uniform", "zipf:1"], "tokens": [1, 2]}
    plan = fake_plan(monkeypatch, grid=grid, zip=[["tokens", "ep"]])
    values = [tuple(plan.values(point).values()) for point in plan.point_ids]
    assert values == [(8, "uniform", 1), (8, "zipf:1", 1), (16, "uniform", 2), (16, "zipf:1", 2)]


def test_a_sample_is_part_of_the_grid_and_follows_its_seed(monkeypatch):
    grid = {"ep": "1..100/+1", "tokens": "1..100/+1"}
    whole = fake_plan(monkeypatch, grid=grid)
    one, again, other = (fake_plan(monkeypatch, grid=grid, sample=50, seed=seed) for seed in (1, 1, 2))
    assert (len(one.point_ids), len(set(one.point_ids))) == (50, 50)
    assert one.point_ids == again.point_ids != other.point_ids
    assert set(one.point_ids) <= set(whole.point_ids)
    assert (whole.is_complete, one.is_complete) == (True, False)
    assert all(one.values(point) == whole.values(point) for point in one.point_ids)
    assert fake_plan(monkeypatch, grid=grid, sample=10**9).point_ids == whole.point_ids


def test_group_sizes_and_operations_are_those_of_predict_unless_said():
    plan = make_plan(Sweep(grid={"model": "v3"}))
    assert plan.axes == {"model": ("v3",), **TARGETS["predict"].defaults}


@pytest.mark.parametrize(
    ("sweep", "sentence"),
    [
        (Sweep(), "at least one parameter"),
        (Sweep(target="predcit", grid={"ep": 8}), "must be one of predict"),
        (Sweep(grid={"epp": 8}), "did you mean ep"),
        (Sweep(grid={"hbm_rate": "4TB/s"}), r"did you mean set\.hbm_rate"),
        (Sweep(grid={"set": {"hbm_rat": "4TB/s"}}), r"did you mean set\.hbm_rate"),
        (Sweep(grid={"topology": {"port_rates": "400Gbps"}}), r"did you mean topology\.port_rate"),
        (Sweep(grid={"set.hbm_rate": 4}), "needs a unit"),
        (Sweep(grid={"set.hbm_rate": "4TB/s", "set": {"hbm_rate": "4TB/s"}}), "given twice"),
        (Sweep(grid={"ep": [8, 16, 8]}), "2 times"),
        (Sweep(grid={"ep": []}), "at least one value"),
        (Sweep(grid={"ep": ["eight"]}), "cannot be one value"),
        (Sweep(grid={"ep": True}), "cannot be one value"),
        (Sweep(grid={"operations": "dispach"}), "cannot be one value"),
        (Sweep(grid={"model": "v99"}), "must be one of"),
        (Sweep(grid={"hardware": "951"}), "951"),
        (Sweep(grid={"software": "no.toml"}), "no.toml"),
        (Sweep(grid={"num_buffer_bytes": "2Gbps"}), "size"),
        (Sweep(grid={"topology.planes": [[8]]}), "must be a number"),
        (Sweep(grid={"ep": 8}, zip=[["ep", "tokens"]]), "no axis"),
        (Sweep(grid={"ep": [8, 16], "tokens": [1, 2, 3]}, zip=[["ep", "tokens"]]), "equally many"),
        (Sweep(grid={"ep": 8, "tokens": 1}, zip=[["ep", "tokens"], ["ep"]]), "two groups"),
        (Sweep(grid={"ep": "1..1000/+1", "tokens": "1..1000/+1"}), "at most 262,144"),
        (Sweep(grid={"ep": 8}, sample=0), "at least 1"),
        (Sweep(grid={"ep": 8}, sample=1, seed=-1), "negative"),
        (Sweep(grid={"ep": 8}, seed=9), "goes with a sample"),
        (Sweep(grid={"ep": 8, "workload": "w.json"}), "said by the workload"),
    ],
)  # fmt: skip
def test_what_no_point_could_have_is_refused_before_any_work(sweep, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        make_plan(sweep)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("grid = [", "TOML"), ("gird = 1", "gird"), ("sample = 'x'", "sample"), ("\xff", "TOML")],
)
def test_a_file_that_is_no_sweep_is_refused(tmp_path, text, sentence):
    path = tmp_path / "plan.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=sentence):
        read_sweep(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_sweep(tmp_path / "no.toml")


def test_file_and_flags_say_the_same(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text('sample = 3\n[grid]\nep = [8, 16]\nset.hbm_rate = "1TB/s..4TB/s/x2"\n')
    grid = {"ep": read_words("ep", "8,16"), "set.hbm_rate": read_words("", "1TB/s,2TB/s,4TB/s")}
    assert make_plan(read_sweep(path)) == make_plan(Sweep(sample=3, grid=grid))


def test_the_digest_sees_values_order_and_files(tmp_path):
    """Another plan must not continue this one: its points have other numbers or other answers."""
    file = tmp_path / "mine.toml"
    file.write_text('base = "950dt"\nname = "mine"\n')
    plans = [
        make_plan(Sweep(grid=grid, sample=sample))
        for grid, sample in (
            ({"ep": [8, 16], "hardware": str(file)}, None), ({"ep": [16, 8], "hardware": str(file)}, None),
            ({"hardware": str(file), "ep": [8, 16]}, None), ({"ep": [8, 16], "hardware": str(file)}, 1),
        )
    ]  # fmt: skip
    file.write_text('base = "950dt"\nname = "other"\n')
    plans.append(make_plan(Sweep(grid={"ep": [8, 16], "hardware": str(file)})))
    assert len({plan.digest for plan in plans}) == 5


def figures(**values):
    """Return the cells of one point by column."""
    target = TARGETS["predict"]
    return dict(zip(target.columns, evaluate(target, values), strict=True))


@pytest.mark.parametrize("values", [
    {"set.hbm_rate": "2TB/s"}, {"topology.planes": 4}, {"topology.port_rate": "200Gbps", "system": "ubl128"},
    {"num_topk": 4}, {"routing": "zipf:0.8", "draws": 2}, {"token_counts": "stepped"}, {"tokens": [8] * 16},
    {"dtype": "bf16"}, {"system": "clos:256"}, {"expert_alignment": 1}, {"num_buffer_bytes": "1MiB"},
])  # fmt: skip
def test_every_kind_of_parameter_reaches_the_prediction(values):
    """Against predict itself, and against the point without it."""
    base = {"ep": 16, "operations": "dispatch"}
    keys = {k.partition(".")[2]: v for k, v in values.items() if k.startswith("set.")}
    plain = {k: v for k, v in values.items() if "." not in k}
    found = figures(**base, **values)
    if not any(name.startswith("topology.") for name in values) and "num_buffer_bytes" not in values:
        arguments = {**plain, "ep": 16, "operations": ("dispatch",)}
        assert found["time_us"] == predict(**arguments, settings=keys)[0].time_us
    if values not in ({"system": "clos:256"}, {"expert_alignment": 1}):
        assert found != figures(**base)


def test_a_changed_topology_is_the_cluster_file_with_that_key(tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text('kind = "ubl128"\nport_rate = "200Gbps"\n')
    base = {"ep": 16, "operations": "combine"}
    slow = figures(**base, system=str(path))
    assert figures(**base, **{"topology.port_rate": "200Gbps"}) == slow
    assert figures(**base, system=str(path), **{"topology.port_rate": "400Gbps"}) == figures(**base)
    path.write_text('kind = "ubl128"\nport_rate = "400Gbps"\n')
    assert figures(**base, system=str(path)) == figures(**base), "the old graph was kept"


@pytest.mark.parametrize(
    "values", [{"system": "sm100", "topology.planes": 4}, {"topology.leaves": 4}, {"topology.planes": 0.5}]
)
def test_a_key_that_the_system_lacks_is_refused(values):
    with pytest.raises(ValueError, match=r"topology\.planes|leaves|planes"):
        figures(ep=8, operations="dispatch", **values)


def test_a_workload_is_read_from_its_manifest(tmp_path):
    expected = predict(ep=8, operations=("combine",), routing="zipf:0.5", tokens=64)
    write_manifest(tmp_path / "w.json", expected.workloads[0])
    plan = make_plan(Sweep(grid={"workload": str(tmp_path / "w.json"), "operations": "combine"}))
    found = figures(**plan.values(plan.point_ids[0]))
    assert found["time_us"] == expected[0].time_us
    assert found["fingerprint"] == expected[0].fingerprint


def test_topology_keys_are_single_numbers_of_cluster_files():
    assert {"port_rate", "planes", "oversubscription", "link_rate"} <= set(topology_keys())
    assert not {"links", "changes", "name"} & set(topology_keys())
    assert MAX_POINTS == 262_144


def test_the_file_of_the_page_is_a_plan(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "sweep.md").read_text()
    (tmp_path / "plan.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    plan = make_plan(read_sweep(tmp_path / "plan.toml"))
    assert (len(plan.point_ids), plan.dimensions[0]) == (500, ("model", "tokens"))
