"""Shared pieces of the measurement tests: CSV text from a row that is right, and rows made by the model."""

import csv
import io

from epsim.calibration.measured import parse_measurements
from epsim.predict import predict

GOOD = {
    "id": "one",
    "system": "DeepEP-Ascend",
    "generation": "Ascend 950DT",
    "topology": "UBL128",
    "op": "dispatch",
    "ep_size": "8",
    "tokens_per_rank": "16384",
    "hidden": "7168",
    "num_topk": "6",
    "num_experts": "256",
    "dtype": "fp8_e4m3",
    "kernel": "high-throughput",
    "gb_per_s_min": "373",
    "gb_per_s_max": "375",
    "latency_us": "",
    "metric": "logical GB/s incl. local rank",
    "conditions": "as published",
    "source": "a test",
    "use": "calibrate",
}
HEADER = list(GOOD)


def csv_bytes(*changes, header=HEADER):
    """Return a measurement file with one line per dict of changes to the good row."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for change in changes:
        row = {**GOOD, **{key: str(value) for key, value in change.items()}}
        writer.writerow([row.get(column, "") for column in header])
    return out.getvalue().encode()


def rows_of(*changes):
    """Return the typed rows of such a file."""
    return parse_measurements(csv_bytes(*changes), "test.csv")


def synthetic_changes(settings, sizes=(8, 16, 32, 64, 128), factor=None):
    """Return rows whose published figures are what the model gives with known parameters.

    Args:
      settings: the known parameters.
      sizes: group sizes.
      factor: (operation, ep_size) -> factor on the figure, to plant errors.
    """
    changes = []
    items = predict("ubl128", ep=sizes, token_counts="stepped", settings=settings)
    for item in items:
        scale = (factor or {}).get((item.operation, item.ep_size), 1.0)
        figure = f"{item.gb_per_s_mean * scale:.9f}"
        changes.append(
            {
                "id": f"{item.operation}-{item.ep_size}",
                "op": item.operation,
                "ep_size": item.ep_size,
                "dtype": "bf16" if item.operation == "combine" else "fp8_e4m3",
                "gb_per_s_min": figure,
                "gb_per_s_max": figure,
            }
        )
    return changes
