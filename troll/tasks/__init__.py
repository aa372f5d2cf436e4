"""Tasks: problems, prompts and verifiers."""
