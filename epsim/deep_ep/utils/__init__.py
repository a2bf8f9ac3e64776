"""`deep_ep.utils`: casts, gates, references, set-up and timing, for programs and tests around the buffers.

One module per upstream module: `math`, `gate`, `refs`, `envs`, `event`, `testing`. `launcher` is the only
file of this package that looks at the environment or prints.
"""
