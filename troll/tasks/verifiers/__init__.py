"""Decides whether completions are right: mathematics with math-verify, code in the sandbox."""
