"""Narrow number formats: casts, quantisation recipes, scales and how they are packed."""
