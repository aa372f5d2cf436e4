"""Public data sets as tasks, from a local mirror or from the Hugging Face hub."""
