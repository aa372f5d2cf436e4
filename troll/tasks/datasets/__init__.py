"""Public data sets in one form, from a local mirror or from the Hugging Face hub."""
