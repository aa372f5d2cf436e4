"""Figures: tidy data to a matplotlib Figure."""
