"""The sandbox for model-written programs: runners under bubblewrap."""
