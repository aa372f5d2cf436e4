"""The command line: thin commands, and what they need for people."""
