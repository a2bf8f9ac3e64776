"""Routings made, read and described: generators, files, manifests, exact expectations."""
