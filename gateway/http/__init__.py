"""The HTTP API: one module a resource, one envelope for every answer."""
