"""What every room may use: errors, files, seeds, progress, signals, the hub and its lock file."""
