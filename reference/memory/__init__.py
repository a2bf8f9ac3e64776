"""Bytes of the Ascend buffer: records, regions, workspace words, work requests, sizes and limits."""
