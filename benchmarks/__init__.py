"""Repeatable measurements: `python -m benchmarks`, or `python -m benchmarks predict` for one file."""
