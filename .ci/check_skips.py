"""Fail when a test was skipped for another reason than missing hardware: a skip must not hide a gap.

Usage: python check_skips.py JUNIT_XML. A reason that starts with "hardware:" is accepted.
"""

import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path


def skips(report: str) -> list[tuple[str, str]]:
    """Return (test, reason) of every skipped or expected-to-fail test of a JUnit report."""
    return [
        (f"{case.get('classname')}::{case.get('name')}", skipped.get("message") or "no reason")
        for case in ET.fromstring(report).iter("testcase")
        for skipped in case.iter("skipped")
    ]


def verdict(report: str) -> tuple[int, str]:
    """Return exit code and text: 1 for a skip without hardware reason, or a report without any test."""
    found = skips(report)
    num_tests = sum(1 for _ in ET.fromstring(report).iter("testcase"))
    if not num_tests:
        return 1, "no test ran\n"
    lines = [f"{count} x {reason}" for reason, count in sorted(Counter(r for _, r in found).items())]
    bad = [f"not allowed: {test}: {reason}" for test, reason in found if not reason.startswith("hardware:")]
    head = f"{len(found)} of {num_tests} tests were skipped"
    return int(bool(bad)), "\n".join([head, *lines, *bad]) + "\n"


if __name__ == "__main__":
    code, text = verdict(Path(sys.argv[1]).read_text())
    sys.stdout.write(text)
    sys.exit(code)
