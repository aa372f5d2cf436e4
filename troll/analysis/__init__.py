"""Analysis of finished runs: tables, figures and verdicts. No module here imports torch."""
