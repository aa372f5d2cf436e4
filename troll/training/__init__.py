"""Training: the trainer that joins the algorithms to TRL, base models, records."""
