"""Running experiments: checks before, the workflow itself, its progress, rehearsals, rankings."""
