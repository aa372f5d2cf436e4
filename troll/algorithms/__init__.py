"""Tensor mathematics of the trust regions: no models, no files; torch and nothing else."""
