"""What decides whether a completion is right: mathematics through math-verify, code through the sandbox."""
