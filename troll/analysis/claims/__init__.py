"""Claims and their verdicts."""
