"""Machines that run dispatch and combine, behind one protocol."""
