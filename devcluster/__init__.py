"""A whole cluster on one machine: embedded stores, processes, balancer, `orbit dev`."""
