"""Load: the benchmark that writes the figures, and the swarm of bare clients that it drives."""
