"""Comparing results: the only meaning of "equal" is an empty report."""
