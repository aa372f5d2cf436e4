"""Samples from checkpoints and grades them."""
