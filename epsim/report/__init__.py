"""Results as text for people and JSON for programs: the only place that formats them."""
