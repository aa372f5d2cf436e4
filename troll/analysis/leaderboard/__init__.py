"""The leaderboard: trust regions tuned with the same budget and compared on fresh seeds."""
