"""The sandbox in which model-written programs run: a pool of runners under bubblewrap."""
