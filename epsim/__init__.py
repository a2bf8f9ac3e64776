"""Simulator-backed reference and testbed for expert-parallel communication on Ascend 950."""
