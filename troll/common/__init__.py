"""Helpers for every subpackage: errors, files, seeds, progress, signals, the hub and its lock file."""
