"""What people ask around a run: is the machine ready, how long, how far, what may a file hold."""
