"""What a run stands on: systems by name, hardware and software profiles, rates."""
