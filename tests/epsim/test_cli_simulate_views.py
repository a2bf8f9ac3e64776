"""What `epsim simulate` shows besides its table: progress, full links, and no hint to do what is done."""

import io
import json
import sys

import numpy as np
import pytest

from epsim.cli import run
from epsim.errors import InputError
from epsim.sim.run import EventOptions
from epsim.simulate import simulate
from epsim.trace.plots import MOST_ROWS, links_plot, readable_links

SMALL = ["simulate", "--ep", "4", "--tokens", "16", "--op", "dispatch"]
HINT = "for an ideal issue order"


class Terminal(io.StringIO):
    """Somebody looks at it."""

    def isatty(self):
        return True


def test_progress_is_for_terminals_and_not_for_json(monkeypatch, capsys):
    words = ["simulate", "--ep", "8", "--tokens", "1024", "--op", "dispatch"]
    assert run(words) == 0
    assert capsys.readouterr().err == ""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert run([*words, "--json"]) == 0
    assert terminal.getvalue() == ""
    assert run(words) == 0
    assert "bytes" in terminal.getvalue()
    assert "%" in terminal.getvalue()


def test_progress_grows_to_all_bytes_and_changes_nothing():
    seen = []
    common = {"ep": 8, "tokens": 1024, "operations": ("dispatch",)}
    [watched] = simulate(on_progress=lambda *pair: seen.append(pair), **common)
    [alone] = simulate(**common)
    assert dict(watched.to_dict()) == dict(alone.to_dict())
    assert len(seen) > 1
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] > seen[0][0]


@pytest.mark.parametrize(("suffix", "first"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_full_links_are_drawn_beside_the_ranks(suffix, first, tmp_path, capfd):
    path, other = tmp_path / f"links.{suffix}", tmp_path / f"ranks.{suffix}"
    assert run([*SMALL, "--plot-links", str(path), "--plot", str(other)]) == 0
    assert f"wrote {path}" in capfd.readouterr().out
    assert path.read_bytes().startswith(first)
    assert other.read_bytes() != path.read_bytes()


def test_a_picture_of_many_links_has_the_fullest_ones():
    options = EventOptions(with_trace=True)
    [item] = simulate(ep=64, tokens=16, operations=("dispatch",), events=options)
    links = item.trace.links
    shown = readable_links(item.trace)
    assert len(shown) == MOST_ROWS < len(links.labels)
    used = dict(zip(links.labels, links.utilisation.mean(axis=1), strict=True))
    least = min(used[label] for label in shown)
    assert all(used[label] <= least or label in shown for label in links.labels)
    with pytest.raises(InputError, match="links is 128"):
        links_plot(item.trace, "png")
    with pytest.raises(InputError, match="must be a link of the trace"):
        links_plot(item.trace, "png", labels=("nothing",))


def test_what_is_switched_off_is_not_asked_for(capfd):
    assert run(SMALL) == 0
    assert HINT in capfd.readouterr().out
    assert run([*SMALL, "--no-slope"]) == 0
    assert HINT not in capfd.readouterr().out
    assert run([*SMALL, "--no-slope", "--set", "fanout_slope_dispatch=0.1"]) == 2
    assert "fan-out loss, which is switched off" in capfd.readouterr().err


def test_without_the_loss_the_closed_form_has_none_either():
    common = {"ep": 64, "tokens": 64, "operations": ("dispatch",), "level": "flow"}
    [item], [lossy] = simulate(with_slope=False, **common), simulate(**common)
    settings = {"fanout_slope_dispatch": 0, "fanout_slope_combine": 0}
    [zero] = simulate(settings=settings, **common)
    assert (item.predicted_us, item.time_us) == (zero.predicted_us, zero.time_us)
    assert item.predicted_us < lossy.predicted_us


def test_json_and_text_say_descriptors(capfd):
    assert run([*SMALL, "--grain", "chunk:2", "--json"]) == 0
    [item] = json.loads(capfd.readouterr().out)
    assert item["num_descriptors_per_chunk"] == 2
    assert "up to 2 descriptors at once" in item["method"]
    assert not any("sqe" in key for key in item)
    assert np.shape(item["ranks"]["held_us"]) == (4,)
