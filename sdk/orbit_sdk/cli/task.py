"""`orbit task`: submit, get, watch, attempts, cancel, retry, resolve."""

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import get_args

import click
import orjson

from orbit_sdk.cli.failures import EXIT_FAILED, EXIT_OK
from orbit_sdk.cli.options import operation_options
from orbit_sdk.cli.views import echo_attempts, echo_json, echo_task
from orbit_sdk.client.models import RetryPolicy, ReviewOutcome, SubmitOptions, Task, TaskChange
from orbit_sdk.client.sync_client import Client
from orbit_sdk.errors import WaitTimeout
from orbit_sdk.protocol.states import RecoverySafety, TaskState

WATCH_INTERVAL_S = 0.5
REVIEW_OUTCOMES = get_args(ReviewOutcome)

_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_timeout_option = click.option(
    "--timeout", default=60.0, show_default=True, help="Seconds to wait for the end of the task."
)


@click.group()
def task() -> None:
    """Submit tasks, look at them, take them back."""


@task.command()
@click.argument("handler")
@click.option("--queue", default="default", show_default=True, help="Queue, by name or id.")
@click.option(
    "--payload",
    default="{}",
    show_default=True,
    help="JSON text; @FILE reads a file, - reads standard input.",
)
@click.option("--key", help="Name of this submission: the same key again is the same task.")
@click.option("--handler-version", default="1", show_default=True)
@click.option("--payload-version", default="1", show_default=True)
@click.option(
    "--recovery",
    type=click.Choice(["idempotent", "reconcile-only"]),
    default="idempotent",
    show_default=True,
    help="If a worker vanishes in the middle: run it again, or never and ask for a review.",
)
@click.option("--priority", default=0, show_default=True, help="-100 to 100; higher goes first.")
@click.option("--max-attempts", default=3, show_default=True)
@click.option("--business-key", help="A key of your own to find the task by.")
@click.option("--wait", is_flag=True, help="Wait until it has settled; exit 1 unless it succeeded.")
@_timeout_option
@_json_option
def submit(
    handler: str,
    queue: str,
    payload: str,
    key: str | None,
    handler_version: str,
    payload_version: str,
    recovery: str,
    priority: int,
    max_attempts: int,
    business_key: str | None,
    wait: bool,
    timeout: float,
    as_json: bool,
) -> int:
    """Submit a task for HANDLER; it is stored durably when this returns.

    \b
      orbit task submit hello --payload '{"name": "world"}'
      orbit task submit report --payload @report.json --key report-2026-10 --wait
    """
    options: SubmitOptions = {
        "queue": queue,
        "key": key,
        "handler_version": handler_version,
        "payload_version": payload_version,
        "recovery_safety": RecoverySafety(recovery.upper().replace("-", "_")),
        "retry": RetryPolicy(max_attempts=max_attempts),
        "priority": priority,
        "business_key": business_key,
    }
    with Client() as client:
        submitted = client.submit(handler, _json_bytes(payload, "--payload"), **options)
        if wait:
            return _show(client.wait(submitted.id, timeout), as_json)
    if as_json:
        echo_json(submitted)
    else:
        known = ", known before" if submitted.deduplicated else ""
        click.echo(f"{submitted.id} {submitted.state.value}{known} (key {submitted.key})")
    return EXIT_OK


@task.command()
@click.argument("task_id")
@_json_option
def get(task_id: str, as_json: bool) -> None:
    """Show a task as it is now."""
    with Client() as client:
        found = client.get(task_id)
    if as_json:
        echo_json(found)
    else:
        echo_task(found)


@task.command()
@click.argument("task_id")
@_timeout_option
@_json_option
def watch(task_id: str, timeout: float, as_json: bool) -> int:
    """Print each change of a task until it has settled; exit 1 unless it succeeded."""
    deadline = time.monotonic() + timeout
    seen = -1
    with Client() as client:
        while True:
            found = client.get(task_id)
            if found.settled:
                return _show(found, as_json)
            if found.revision != seen and not as_json:
                click.echo(f"{found.state.value} (attempt {found.attempt_count})", err=True)
            seen = found.revision
            if time.monotonic() >= deadline:
                raise WaitTimeout("wait_timeout", f"the task is {found.state.value} still")
            time.sleep(WATCH_INTERVAL_S)


@task.command()
@click.argument("task_id")
@_json_option
def attempts(task_id: str, as_json: bool) -> None:
    """List the attempts of a task, the first one first."""
    with Client() as client:
        found = client.attempts(task_id)
    if as_json:
        echo_json(found)
    else:
        echo_attempts(found)


@task.command()
@click.argument("task_id")
@operation_options("revision")
@_json_option
def cancel(task_id: str, reason: str, expected: int | None, key: str | None, as_json: bool) -> None:
    """Take a task back.

    What waits is cancelled at once. What runs is asked to stop: watch it to see how it ends.

    \b
      orbit task cancel 0198... --reason "sold out"
    """
    with Client() as client:
        _changed(client.cancel(task_id, reason, expected_revision=expected, key=key), as_json)


@task.command()
@click.argument("task_id")
@operation_options("revision")
@click.option(
    "--deadline",
    type=click.DateTime(["%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%d"]),
    help="New end of the task, UTC; needed when the old one has passed.",
)
@_json_option
def retry(
    task_id: str,
    reason: str,
    expected: int | None,
    key: str | None,
    deadline: datetime | None,
    as_json: bool,
) -> None:
    """Give a task that failed, was cancelled or needs review one more attempt.

    \b
      orbit task retry 0198... --reason "the mail server is back"
    """
    deadline_at = None if deadline is None else deadline.replace(tzinfo=UTC)
    with Client() as client:
        changed = client.retry(
            task_id, reason, expected_revision=expected, deadline_at=deadline_at, key=key
        )
    _changed(changed, as_json)


@task.command()
@click.argument("task_id")
@click.argument("outcome", type=click.Choice(REVIEW_OUTCOMES, case_sensitive=False))
@operation_options("revision")
@click.option(
    "--evidence",
    required=True,
    help="What it rests on, JSON text; @FILE reads a file, - reads standard input.",
)
@_json_option
def resolve(
    task_id: str,
    outcome: ReviewOutcome,
    reason: str,
    expected: int | None,
    key: str | None,
    evidence: str,
    as_json: bool,
) -> None:
    """Say how a task that needs review ended.

    \b
      orbit task resolve 0198... SUCCEEDED --reason "seen in the bank's log" --evidence '{"ref": 7}'
    """
    data = _json_bytes(evidence, "--evidence")
    with Client() as client:
        changed = client.resolve(
            task_id, outcome, reason, data, expected_revision=expected, key=key
        )
    _changed(changed, as_json)


def _changed(change: TaskChange, as_json: bool) -> None:
    if as_json:
        echo_json(change)
        return
    stops = change.state is TaskState.RUNNING
    known = ", done before" if change.deduplicated else ""
    click.echo(f"{change.id} {change.state.value}{', asked to stop' if stops else ''}{known}")


def _show(found: Task, as_json: bool) -> int:
    if as_json:
        echo_json(found)
    else:
        echo_task(found)
    return EXIT_OK if found.state is TaskState.SUCCEEDED else EXIT_FAILED


def _json_bytes(text: str, option: str) -> bytes:
    if text == "-":
        data = sys.stdin.buffer.read()
    elif text.startswith("@"):
        try:
            data = Path(text[1:]).read_bytes()
        except OSError as error:
            raise click.BadParameter(f"{text[1:]}: {error.strerror}", param_hint=option) from None
    else:
        data = text.encode("utf-8", "surrogateescape")
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise click.BadParameter(f"not JSON: {error}", param_hint=option) from None
    return data
