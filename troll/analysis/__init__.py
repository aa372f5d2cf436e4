"""Analysis: from run directories to tables, figures and sentences; no module here imports torch."""
