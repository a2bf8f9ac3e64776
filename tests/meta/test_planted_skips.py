"""The skip check of CI: a skip without hardware behind it fails, so does a run without tests."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "check_skips.py"

SUITES = [
    ("import pytest\ndef test_a(): pytest.skip('no time')", 1, "not allowed: test_x::test_a: no time"),
    ("import pytest\npytest.importorskip('no_such_module')\ndef test_a(): pass", 1, "not allowed"),
    ("import pytest\n@pytest.mark.xfail\ndef test_a(): assert 0", 1, "not allowed"),
    ("x = 1", 1, "no test ran"),
    ("import pytest\ndef test_a(): pytest.skip('hardware: needs an NPU')", 0, "1 x hardware: needs an NPU"),
    ("def test_a(): pass", 0, "0 of 1 tests were skipped"),
]


@pytest.mark.parametrize(("source", "code", "text"), SUITES, ids=[s[:40] for s, _, _ in SUITES])
def test_a_run_is_judged_by_its_skips(tmp_path, source, code, text):
    """Pytest runs a planted suite, and the check reads the report that it really wrote."""
    (tmp_path / "test_x.py").write_text(source)
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "."]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    done = subprocess.run(
        [sys.executable, SCRIPT, report], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (code, "")
    assert text in done.stdout
