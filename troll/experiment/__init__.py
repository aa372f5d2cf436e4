"""Experiment files: their keys, the runs that they plan, and checks."""
