"""Every trust region tuned with the same budget, then compared on fresh seeds."""
