"""The parts of `calibrate` and `validate`: measured rows, the fit, and what it can claim."""
