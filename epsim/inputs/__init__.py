"""From what a user says (group, tokens, routing) to row counts."""
