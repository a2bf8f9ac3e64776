"""A result of another dtype is a finding of `epsim debug`: field, rank and both dtypes in its first line."""

import numpy as np
import pytest

from epsim.capture import CaptureGroup, CaptureOptions, write_capture
from epsim.cli import run
from epsim.debug.files import write_arrays
from epsim.debug.from_reference import example_capture

PAYLOADS = {"bf16": "bfloat16", "fp8": "float8_e4m3fn"}
OTHERS = (
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu"),
    *("float16", "float64", "int32"),
)
GROUP = CaptureGroup(ep_size=2, num_experts=4, num_topk=2, hidden=128, num_max_tokens_per_rank=2)


def judged(folder, capture, **changed):
    """Return the exit code for a dump in which rank 1 has other arrays."""
    write_capture(folder, capture)
    write_arrays(folder / "rank1.safetensors", capture.ranks[1] | changed)
    return run(["debug", str(folder)])


CASES = [
    (field, payload, right, given)
    for field in ("recv_x", "combined_x")
    for payload in PAYLOADS
    for right in (PAYLOADS[payload if field == "recv_x" else "bf16"],)
    for given in OTHERS
    if given != right
]


@pytest.mark.parametrize(("field", "payload", "right", "given"), CASES)
def test_every_other_dtype_of_a_result_is_a_finding(field, payload, right, given, tmp_path, capfd):
    """A float of as many bytes is another dtype, not the bits of the right one."""
    capture = example_capture(GROUP, tokens=(2, 2), seed=1, options=CaptureOptions(dtype=payload))
    wrong = np.zeros(capture.ranks[1][field].shape, dtype=given)
    code = judged(tmp_path / "dump", capture, **{field: wrong})
    printed = capfd.readouterr()
    assert (code, printed.err) == (1, "")
    text = f"not equal; dtype: {field} at rank 1: expected {right}, got {given}\n"
    assert printed.out.startswith(f"{tmp_path / 'dump'}: {text}")


@pytest.mark.parametrize("field", ["x", "combine_x"])
def test_what_was_given_must_have_its_dtype(field, tmp_path, capfd):
    """Nothing can be expected from another one, so the dump cannot be judged."""
    capture = example_capture(GROUP, tokens=(2, 2), seed=1, options=CaptureOptions(dtype="bf16"))
    wrong = np.zeros(capture.ranks[1][field].shape, dtype="float8_e5m2")
    code = judged(tmp_path / "dump", capture, **{field: wrong})
    printed = capfd.readouterr()
    assert (code, printed.out) == (2, "")
    assert f"rank 1: {field}.dtype is 'float8_e5m2': must be bfloat16" in printed.err
