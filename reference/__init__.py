"""What dispatch and combine mean: NumPy only, all ranks in one process."""
