"""The stateless node: HTTP API and worker WebSockets."""
