"""What every core has to do, before any clock runs: work counted from a routing, and its grain."""
