"""The command line `orbit`: workers, tasks and queues here, the server's commands by plugin."""
