"""Tables: tidy data to a DataFrame of numbers."""
