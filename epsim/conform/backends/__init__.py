"""Backends that need no kernels of ours, and the registry of all; what each needs is imported when it is opened."""
