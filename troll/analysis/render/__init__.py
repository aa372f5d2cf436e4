"""How numbers are shown: cells, styles, panels, HTML."""
