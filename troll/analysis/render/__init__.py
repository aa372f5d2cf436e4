"""Rendering: table cells, styles of figures, panels and HTML."""
