"""Runs evalplus' own evaluator inside the sandbox."""
