"""`python -m epsim` is the `epsim` command."""

from epsim.cli import main

main()
