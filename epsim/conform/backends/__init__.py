"""Backends that need no kernels of ours, the registry of all; each imports what it needs when used."""
