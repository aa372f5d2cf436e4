"""lm-eval's metrics on recorded samples, and its built-in tasks."""
