"""The checks of these tests reject what is wrong: faults planted in right results are all found."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the drop-in for deep_ep needs torch")

import torch
import torch.distributed as dist

import epsim.deep_ep as deep_ep
from epsim.deep_ep.arrays import tensor_of
from epsim.deep_ep.base import BufferBase
from epsim.deep_ep.bucket import BucketBuffer
from epsim.deep_ep.handle import handle_of
from reference.order import RANK_REDUCED
from tests.epsim.deep_ep import program
from tests.epsim.deep_ep.group_cases import check_combine, check_dispatch, define_combined, make_case
from tests.epsim.deep_ep.spawning import run_ranks

ROOT = Path(__file__).parents[3]


def right_outputs():
    """Return (outputs, (result, handle)) of rank 0 of two, as a dispatch gives them."""
    case = make_case(3, 2, alignment=4, fp8=True)
    results, handles = case.dispatched(zero_padding=True)
    result, plan = results[0], handles[0]
    handle = handle_of(plan, case.ids(0), num_sms=32, num_scaleup_ranks=2)
    x = tensor_of(result.recv_x.copy()), tensor_of(result.recv_scales.copy())
    return [x, None, tensor_of(result.recv_topk_weights.copy()), handle], (result, plan)


def swap(tensor, row, other):
    """Exchange two rows in place."""
    tensor[[row, other]] = tensor[[other, row]].clone()


def set_field(outputs, name, change):
    """Replace a field of the handle by a changed copy."""
    value = getattr(outputs[3], name).clone()
    change(value)
    setattr(outputs[3], name, value)


FAULTS = {
    "rows swapped": lambda o: swap(o[0][0].view(torch.uint8), 0, 1),
    "one bit": lambda o: o[0][0].view(torch.uint8)[2, 5].bitwise_xor_(1),
    "scales swapped": lambda o: swap(o[0][1], 0, 1),
    "weights shifted": lambda o: o[2].copy_(o[2].roll(1)),
    "padding unset": lambda o: o[2].masked_fill_(o[2] == 0, float("nan")),
    "a row lost": lambda o: o.__setitem__(0, (o[0][0][:-1], o[0][1])),
    "another dtype": lambda o: o.__setitem__(0, (o[0][0].view(torch.float8_e5m2), o[0][1])),
    "scales transposed": lambda o: o.__setitem__(0, (o[0][0], o[0][1].T.contiguous().T)),
    "weights missing": lambda o: o.__setitem__(2, None),
    "psum of ranks": lambda o: set_field(o, "psum_num_recv_tokens_per_rank", lambda t: t[0].add_(1)),
    "psum of experts": lambda o: set_field(o, "psum_num_recv_tokens_per_expert", lambda t: t[0].sub_(1)),
    "a source": lambda o: set_field(o, "recv_src_metadata", lambda t: t[1, -2].add_(1)),
    "a master": lambda o: set_field(o, "recv_src_metadata", lambda t: t[1, -1].add_(1)),
    "a slot": lambda o: set_field(o, "recv_src_metadata", lambda t: swap(t[:, :3], 0, 1)),
    "a sender's slot": lambda o: set_field(o, "dst_buffer_slot_idx", lambda t: t[0].fill_(-1)),
    "the list": lambda o: o[3].num_recv_tokens_per_expert_list.__setitem__(0, 3),
    "a count": lambda o: setattr(o[3], "num_recv_tokens", o[3].num_recv_tokens + 1),
}


def test_a_right_dispatch_passes():
    """Without a fault there is no complaint."""
    check_dispatch(*right_outputs())


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_dispatch_is_found(name):
    """In outputs and in every field of the handle."""
    outputs, expected = right_outputs()
    FAULTS[name](outputs)
    with pytest.raises(AssertionError):
        check_dispatch(outputs, expected)


@pytest.mark.parametrize("fault", ["none", "one ulp", "tokens swapped", "a weight", "a missing weight"])
def test_a_fault_in_a_combine_is_found(fault):
    """One ulp is enough."""
    case = make_case(4, 2)
    _, handles = case.dispatched(zero_padding=True)
    y, weights = case.expert_rows(handles)
    expected = define_combined(handles, y, RANK_REDUCED, weights, (), 0)
    x, home = tensor_of(expected.combined_x.copy()), tensor_of(expected.combined_topk_weights.copy())
    if fault == "none":
        check_combine((x, home), expected)
        return
    if fault == "one ulp":
        x.view(torch.int16)[0, 0] += 1
    elif fault == "tokens swapped":
        swap(x, 0, 1)
    elif fault == "a weight":
        home[0, 0] += 0.5
    with pytest.raises(AssertionError):
        check_combine((x, None if fault == "a missing weight" else home), expected)


class Faulty(deep_ep.EPBuffer):
    """A buffer whose results have a fault."""

    fault = ""

    def dispatch(self, *args, **options):
        found = super().dispatch(*args, **options)
        outputs = found.wait() if options.get("defer_epilogue") else found
        data = outputs[0][0] if isinstance(outputs[0], tuple) else outputs[0]
        raw = data.view(torch.uint8)
        if self.fault == "a bit":
            raw[0, 0] ^= 1
        elif self.fault == "padding":
            raw[-1] = 255
        elif self.fault == "a weight" and outputs[2] is not None:
            outputs[2][0] += 1
        elif self.fault == "a master":
            outputs[3].recv_src_metadata[0, -1] += 1
        if not options.get("defer_epilogue"):
            return outputs
        event = deep_ep.EventOverlap(deep_ep.EventHandle())
        event.register_hook_after_wait(lambda: outputs)
        return event

    def combine(self, *args, **options):
        found = super().combine(*args, **options)
        outputs = found.wait() if options.get("defer_epilogue") else found
        if self.fault == "one ulp":
            outputs[0].view(torch.int16)[0, 0] += 1
        elif self.fault == "a home weight" and outputs[1] is not None:
            outputs[1][0, 0] += 1
        if not options.get("defer_epilogue"):
            return outputs
        event = deep_ep.EventOverlap(deep_ep.EventHandle())
        event.register_hook_after_wait(lambda: outputs)
        return event


PROGRAM_FAULTS = ("a bit", "padding", "a weight", "a master", "one ulp", "a home weight")


def run_faulty(rank, num_ranks):
    """Return the faults that the program did not find; the first run has none and must pass."""
    real, program.deep_ep = program.deep_ep, type("Module", (), dict(vars(deep_ep)))
    program.deep_ep.EPBuffer, program.deep_ep.topk_idx_t = Faulty, real.topk_idx_t
    program.run(dist.group.WORLD, "cpu", points=program.MATRIX[:1])
    missed = []
    for fault in PROGRAM_FAULTS:
        Faulty.fault = fault
        try:
            program.run(dist.group.WORLD, "cpu", points=program.MATRIX[:1])
            missed.append(fault)
        except AssertionError:
            pass
    return missed


def test_the_program_finds_every_planted_fault():
    """Faults in data, padding, weights, metadata, sums."""
    assert run_ranks(run_faulty, 1) == [[]]


def test_without_torch_the_import_says_what_to_install():
    """One sentence with the command, also when torch fails with a RuntimeError."""
    for stand_in in ("sys.modules['torch'] = None", "sys.meta_path.insert(0, Broken())"):
        code = f"""
import sys
class Broken:
    def find_spec(self, name, *rest):
        if name == "torch":
            raise RuntimeError("Failed to load the backend extension: torch_npu")
{stand_in}
from epsim.errors import MissingExtraError
try:
    import epsim.deep_ep
except MissingExtraError as error:
    assert "python -m pip install 'epsim[torch]'" in str(error), error
else:
    raise SystemExit("imported")
"""
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_refused_construction_leaves_nothing_to_say():
    """A buffer that its constructor gave up has no attributes; its end is silent."""
    BufferBase.__del__(object.__new__(BucketBuffer))
