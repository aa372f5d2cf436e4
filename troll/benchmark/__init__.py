"""What an update, a step or an approximation costs, measured side by side in one run."""
