"""Reports: the page of an experiment, generated parts of the README, and checks of released files."""
