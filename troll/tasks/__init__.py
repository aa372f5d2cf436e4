"""What is learnt: problems, prompts and verifiers."""
