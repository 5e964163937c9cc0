"""What every Orbit process needs to run: settings, loops, logs, metrics."""
