"""`troll rehearse`: shrinks an experiment, runs it to the final page on a CPU, and checks every stage."""
