"""The parts of `examples/demo.py`: its cluster, its work, its screen, its checks, its summary."""
