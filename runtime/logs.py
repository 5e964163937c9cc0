"""Structured logs: one JSON object a line on standard error, or coloured text for people.

Where: a process calls `configure_logging` once at its start; modules call `get_logger(__name__)`.
Promise: what libraries log through `logging` comes out in the same shape. Values under a secret's
name, passwords inside URLs and whole credentials are masked wherever they stand, exception texts
included (INV-42).
"""

import logging
import re
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Literal, cast

import orjson
import structlog
from structlog.typing import FilteringBoundLogger, Processor

LogFormat = Literal["json", "console"]
MASK = "***"
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_SECRET_NAMES = frozenset(
    {
        "authorization", "cluster_key", "cluster_keys", "credential", "database_url", "dsn",
        "instance_secret", "lease_secret", "password", "redis_url", "secret", "token",
    }
)  # fmt: skip
_URL_PASSWORD = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]*):[^\s@]*@")
_CREDENTIAL = re.compile(r"\borbit_([0-9a-f]{16})_[A-Za-z0-9_-]{20,}")


def configure_logging(level: str, form: LogFormat) -> None:
    """Set the level ("debug" ... "error") and the form for this process. Calling again replaces."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        mask_secrets,
    ]
    render: Processor = (
        structlog.processors.JSONRenderer(serializer=_dumps)
        if form == "json"
        else structlog.dev.ConsoleRenderer()
    )
    structlog.configure(
        processors=[*shared, render],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])


def get_logger(name: str) -> FilteringBoundLogger:
    """A logger that stamps its lines with the module that wrote them."""
    return cast(FilteringBoundLogger, structlog.get_logger(module=name))


def mask_secrets(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> Mapping[str, Any]:
    """Mask values under a secret's name, URL passwords and credentials; two levels deep."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = MASK if key in _SECRET_NAMES else mask_text(value)
        elif key in _SECRET_NAMES:
            event[key] = MASK
        elif isinstance(value, dict):
            event[key] = dict(mask_secrets(_logger, _method, dict(value)))
    return event


def mask_text(text: str) -> str:
    """The same text with URL passwords and credential secrets masked."""
    if "://" in text:
        text = _URL_PASSWORD.sub(rf"\1:{MASK}@", text)
    if "orbit_" in text:
        text = _CREDENTIAL.sub(rf"orbit_\1_{MASK}", text)
    return text


def _dumps(value: Any, **_options: Any) -> str:
    return orjson.dumps(value, default=repr).decode()


class LogLimiter:
    """Lets the first line through, then one each `quiet_s`, and says how many it held back."""

    def __init__(self, quiet_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._quiet_s = quiet_s
        self._clock = clock
        self._open_at = float("-inf")
        self._held = 0

    def held_back(self) -> int | None:
        """None: say nothing now. A number: speak, and so many lines were held back before."""
        now = self._clock()
        if now < self._open_at:
            self._held += 1
            return None
        self._open_at = now + self._quiet_s
        held, self._held = self._held, 0
        return held
