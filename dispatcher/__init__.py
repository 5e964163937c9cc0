"""The loops that match ready tasks with free workers and let leases lapse."""
