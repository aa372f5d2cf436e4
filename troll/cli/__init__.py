"""The command line: thin commands that call the other subpackages."""
