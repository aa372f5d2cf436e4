"""Running experiments: checks beforehand, the workflow, its progress, rehearsals and the leaderboard."""
