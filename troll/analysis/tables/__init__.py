"""Tables of numbers from tidy data, as DataFrames."""
