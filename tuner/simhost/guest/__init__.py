"""Files that are copied onto the simulated host. Nothing of gputuner imports them."""
