"""The closed form: from loads to times, and how far the answer can be trusted."""
