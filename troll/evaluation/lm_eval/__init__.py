"""Scores recorded samples with lm-eval, by our tasks and by its own."""
