"""The parts of `capture` and `diagnose`: files, frames, judgement, places."""
