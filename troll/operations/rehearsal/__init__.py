"""`troll rehearse`: an experiment made small by rule, run to its page, and looked at on the way."""
