"""A conformance run as JUnit XML, for the pages of CI systems: one case per cell and one per property."""

import xml.etree.ElementTree as ET

from epsim.conform.evidence import PROPERTIES
from epsim.conform.outcome import CellRow, Outcome, PropertyRow


def junit_xml(outcome: Outcome) -> str:
    """Return the document.

    A failed cell is a failure with its rerun line, an unsupported one is skipped with its reason, a property
    that proved nothing is a failure, a search that did not come to its end an error. Times in seconds.
    """
    suites = ET.Element("testsuites", name=f"epsim conform {outcome.backend}")
    cells = _suite(suites, f"{outcome.profile}.cells")
    for row in outcome.cells:
        _cell(cells, row)
    if not outcome.is_whole:
        case = ET.SubElement(cells, "testcase", classname="cells", name="all cells")
        ET.SubElement(case, "error", message=outcome.stopped_text)
    properties = _suite(suites, f"{outcome.profile}.properties")
    for line in outcome.properties:
        _property(properties, line)
    for suite in (cells, properties):
        suite.set("tests", str(len(suite)))
        for count, kind in (("failures", "failure"), ("skipped", "skipped"), ("errors", "error")):
            suite.set(count, str(len(suite.findall(f"testcase/{kind}"))))
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _suite(parent: ET.Element, name: str) -> ET.Element:
    return ET.SubElement(parent, "testsuite", name=name)


def _cell(suite: ET.Element, row: CellRow) -> None:
    case = ET.SubElement(suite, "testcase", classname="cells", name=row.cell, time=f"{row.seconds:.3f}")
    if row.failure:
        first = row.failure.text.splitlines()[0] if row.failure.text else ""
        failure = ET.SubElement(case, "failure", type=row.failure.property, message=_plain(first))
        failure.text = _plain(f"{row.failure.text}\n{row.failure.rerun}")
    elif row.verdict == "unsupported":
        ET.SubElement(case, "skipped", message=_plain(row.unsupported or "no program of it ran"))


def _property(suite: ET.Element, row: PropertyRow) -> None:
    seconds = f"{row.evidence.seconds:.3f}"
    name = f"{row.name}: {PROPERTIES[row.name]}"
    case = ET.SubElement(suite, "testcase", classname="properties", name=name, time=seconds)
    if row.verdict == "failed":
        message = f"broken in {row.num_failures} cells"
        ET.SubElement(case, "failure", type=row.name, message=message)
    elif row.verdict == "proved nothing":
        ET.SubElement(case, "failure", type="proved nothing", message=row.vacuous or "")
    elif row.verdict == "not reached":
        ET.SubElement(case, "skipped", message="the run ended before")


def _plain(text: str) -> str:
    """Return text without the control characters that XML cannot hold."""
    return "".join(c for c in text if c in "\n\t" or ord(c) >= 32)
