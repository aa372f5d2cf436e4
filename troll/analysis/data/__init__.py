"""Tidy data: run directories to two tables, and summaries of them."""
