"""The static site: documentation and released results, from files that git tracks."""
