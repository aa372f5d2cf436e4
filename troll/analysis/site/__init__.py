"""The static site: documentation and released results as pages, from files that git tracks."""
