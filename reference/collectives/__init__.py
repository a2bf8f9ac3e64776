"""What lives beside dispatch and combine: Bucket collectives, pipeline ring, Engram tables."""
