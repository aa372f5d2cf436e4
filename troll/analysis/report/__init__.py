"""What readers open: the page of an experiment, the README's generated parts, released files' check."""
