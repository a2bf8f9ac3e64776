"""Faults on purpose: their one-line texts, what they do to a system, what arithmetic says to them."""
