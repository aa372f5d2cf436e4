"""Tensor mathematics of the trust regions: no models, no files; torch, and pydantic for settings."""
