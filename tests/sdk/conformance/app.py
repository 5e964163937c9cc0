"""Credentials for a run of the suite."""

import json

from devcluster.cluster import LocalCluster

SCOPES = ("submit", "read", "work", "cancel", "retry", "review", "manage")


def app_with_every_scope(cluster: LocalCluster) -> str:
    """A further credential of the application `conformance`."""
    scopes = [word for scope in SCOPES for word in ("--scope", scope)]
    made = cluster.run("app", "create", "conformance", "--queue", "default", *scopes, "--json")
    return str(json.loads(made)["credential"])
