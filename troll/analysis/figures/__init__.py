"""Figures of tidy data, drawn with matplotlib."""
