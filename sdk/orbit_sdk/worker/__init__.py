"""Running handlers under leases, over the worker WebSocket.

worker.py     what users import: Worker, its handlers, run, serve, drain
runner.py     runs handlers on the user's loop and threads, never on the network's
connection.py a thread of its own that pumps one socket, and reconnects for ever
session.py    what to send, when, and when to stop: pure, no IO, no clock, no chance
"""
