"""Manners of the libraries underneath."""

import os

_SETTINGS = {
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
}


def quiet_libraries() -> None:
    """Silences the libraries' progress bars and advice before they are imported; a user's settings stay."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
