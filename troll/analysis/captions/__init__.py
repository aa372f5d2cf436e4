"""What readers are told beside each table and figure, in reStructuredText of paragraphs and literals only."""

from importlib.resources import files
from pathlib import Path

CAPTIONS = Path(str(files(__name__)))
"""Directory of the captions: ``<name>_table.rst``, ``<name>_figure.rst`` and the page's own texts."""
