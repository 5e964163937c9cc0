"""What a program beside an Orbit cluster imports: clients, workers, the wire protocol."""
