"""Conformance: does a backend do what the reference says? Every property, on programs that shrink."""

from epsim.conform.outcome import Outcome
from epsim.conform.search import run_conformance

__all__ = ["Outcome", "run_conformance"]
