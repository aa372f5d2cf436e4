"""Generated tasks: small enough for a laptop, hard enough that reinforcement learning has something to do."""

NAMES = ("chains", "functions")
