"""What commands print: JSON for programs, aligned text for people."""

from collections.abc import Sequence
from datetime import datetime

import click
import msgspec

from orbit_sdk.client.models import Attempt, Queue, Task

VALUE_CHARS_MAX = 500


def echo_json(value: object) -> None:
    """One line of JSON on stdout."""
    click.echo(msgspec.json.encode(value))


def echo_task(task: Task) -> None:
    """A task as a short list of what one wants to know."""
    rows = [
        ("task", task.id),
        ("state", _state(task.state.value)),
        ("handler", f"{task.handler} (version {task.handler_version})"),
        ("attempts", f"{task.attempt_count} of {task.retry.max_attempts}"),
        ("created", _time(task.created_at)),
        ("available", _time(task.available_at)),
        ("deadline", _time(task.deadline_at)),
        ("completed", _time(task.completed_at)),
        ("cancel asked", _time(task.cancel_requested_at)),
        ("cancel reason", task.cancel_reason or ""),
        ("resolved", _time(task.resolved_at)),
        ("review", task.resolve_reason or ""),
        ("business key", task.business_key or ""),
        ("error", task.error_code or ""),
        ("payload", _value(task.payload)),
        ("result", _value(task.result)),
    ]
    for name, text in rows:
        if text:
            click.echo(f"{name:<13} {text}")


def echo_attempts(attempts: Sequence[Attempt]) -> None:
    """Attempts as a table."""
    _table(
        ("EPOCH", "STATE", "STARTED", "FINISHED", "ERROR", "ATTEMPT"),
        [
            (
                str(attempt.epoch),
                attempt.state.value,
                _time(attempt.started_at),
                _time(attempt.finished_at),
                attempt.error_code or "",
                attempt.id,
            )
            for attempt in attempts
        ],
    )


def echo_queues(queues: Sequence[Queue]) -> None:
    """Queues as a table."""
    _table(
        ("NAME", "STATE", "ID"),
        [(queue.name, "paused" if queue.paused else "open", queue.id) for queue in queues],
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    for row in (head, *rows):
        cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def _time(instant: datetime | None) -> str:
    return instant.isoformat(timespec="milliseconds") if instant is not None else ""


def _value(value: object) -> str:
    if value is None:
        return ""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + " …"


def _state(state: str) -> str:
    colours = {"SUCCEEDED": "green", "FAILED": "red", "NEEDS_REVIEW": "yellow"}
    return click.style(state, fg=colours.get(state))
