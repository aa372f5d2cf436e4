"""Samples responses from checkpoints and grades them."""
