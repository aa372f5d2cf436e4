"""Experiments: what a file of one may hold, how it becomes runs, and what is wrong with it."""
