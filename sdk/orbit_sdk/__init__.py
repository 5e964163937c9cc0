"""What a program beside an Orbit cluster imports: clients, workers and the errors they raise.

The names below load their module on first use, so `import orbit_sdk` costs nothing and a client
never pays for the worker (nor the server, which imports only `orbit_sdk.protocol`, for either).
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orbit_sdk.client.async_client import AsyncClient
    from orbit_sdk.client.models import (
        Attempt,
        BatchResult,
        Queue,
        QueueChange,
        RetryPolicy,
        Submission,
        Submitted,
        Task,
        TaskChange,
    )
    from orbit_sdk.client.sync_client import Client
    from orbit_sdk.errors import OrbitError
    from orbit_sdk.worker.context import TaskContext
    from orbit_sdk.worker.outcomes import TaskCancelled, TaskFailed, TaskUnknown
    from orbit_sdk.worker.worker import Worker

_HOMES = {
    "Client": "orbit_sdk.client.sync_client",
    "AsyncClient": "orbit_sdk.client.async_client",
    "Submission": "orbit_sdk.client.models",
    "RetryPolicy": "orbit_sdk.client.models",
    "Submitted": "orbit_sdk.client.models",
    "BatchResult": "orbit_sdk.client.models",
    "Task": "orbit_sdk.client.models",
    "Attempt": "orbit_sdk.client.models",
    "Queue": "orbit_sdk.client.models",
    "TaskChange": "orbit_sdk.client.models",
    "QueueChange": "orbit_sdk.client.models",
    "Worker": "orbit_sdk.worker.worker",
    "TaskContext": "orbit_sdk.worker.context",
    "TaskFailed": "orbit_sdk.worker.outcomes",
    "TaskUnknown": "orbit_sdk.worker.outcomes",
    "TaskCancelled": "orbit_sdk.worker.outcomes",
    "OrbitError": "orbit_sdk.errors",
}

__all__ = [
    "Client",
    "AsyncClient",
    "Submission",
    "RetryPolicy",
    "Submitted",
    "BatchResult",
    "Task",
    "Attempt",
    "Queue",
    "TaskChange",
    "QueueChange",
    "Worker",
    "TaskContext",
    "TaskFailed",
    "TaskUnknown",
    "TaskCancelled",
    "OrbitError",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
