"""Conversion of run directories to two tidy tables, and their summaries."""
