"""What an operator may set, read once from `ORBIT_*` variables at the start of a process.

Where: the command of a process calls `load_settings`, and hands plain values on; nothing else reads
the environment.
Promise: a missing or wrong variable gives one line that names the variable and what it must be, and
never shows the value, for it may be a secret. An empty variable counts as not set.
"""

import base64
import binascii
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from runtime.failpoints import Failpoint, read_failpoints

ENV_PREFIX = "ORBIT_"
CLUSTER_KEY_BYTES_MIN = 32  # HMAC-SHA256 wants a key as long as its output


class SettingsError(Exception):
    """One line for the operator: which variables are wrong, and how. Holds no values."""


def _url_of(*schemes: str) -> AfterValidator:
    def check(value: SecretStr) -> SecretStr:
        try:
            scheme = urlsplit(value.get_secret_value()).scheme
        except ValueError:
            scheme = ""
        if scheme not in schemes:
            raise ValueError(f"must be a URL that starts with {' or '.join(schemes)}")
        return value

    return AfterValidator(check)


def _key_ring(value: SecretStr) -> SecretStr:
    read_key_ring(value)
    return value


def read_key_ring(value: SecretStr) -> dict[int, bytes]:
    """Key ring of the cluster, newest first: `2:<base64>,1:<base64>`.

    The first key signs; the others are still accepted. Raises ValueError without showing the text.
    """
    ring: dict[int, bytes] = {}
    for part in value.get_secret_value().split(","):
        number, _, text = part.strip().partition(":")
        try:
            key = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if not (number.isascii() and number.isdigit() and 1 <= int(number) <= 32767):
            raise ValueError("must be `number:base64,...` with numbers from 1 to 32767")
        if len(key) < CLUSTER_KEY_BYTES_MIN:
            raise ValueError(
                f"each key must be base64url of at least {CLUSTER_KEY_BYTES_MIN} bytes"
            )
        if int(number) in ring:
            raise ValueError("must not use one number twice")
        ring[int(number)] = key
    return ring


Port = Annotated[int, Field(ge=1, le=65535)]
Milliseconds = Annotated[int, Field(ge=1)]
PoolSize = Annotated[int, Field(ge=1, le=100)]


class StoreSettings(BaseSettings):
    """What every process of a cluster needs."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    database_url: Annotated[SecretStr, _url_of("postgres", "postgresql")]
    redis_url: Annotated[SecretStr, _url_of("redis", "rediss", "unix")]
    cluster: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}\z")] = "orbit"
    lease_duration_ms: Annotated[int, Field(ge=1_000, le=120_000)] = 30_000
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "json"
    failpoints_allowed: bool = False
    failpoint_seed: int = 0
    failpoints: str = ""

    @field_validator("failpoints")
    @classmethod
    def _failpoints_are_meant(cls, value: str, info: ValidationInfo) -> str:
        if value and not info.data.get("failpoints_allowed"):
            raise ValueError("breaks things on purpose; only with ORBIT_FAILPOINTS_ALLOWED=1")
        read_failpoints(value, 0)
        return value

    def armed_failpoints(self) -> list[Failpoint]:
        """What is to go wrong on purpose; nothing outside of fault tests."""
        return read_failpoints(self.failpoints, self.failpoint_seed)


class GatewaySettings(StoreSettings):
    """A gateway: where it listens, how long things may take, how many connections it holds."""

    host: str = "127.0.0.1"
    port: Port = 8080
    cluster_keys: Annotated[SecretStr, AfterValidator(_key_ring)]
    session_max_ms: Milliseconds = 24 * 3_600_000
    hello_timeout_ms: Milliseconds = 5_000
    ping_interval_s: Annotated[int, Field(ge=1, le=3_600)] = 20
    drain_grace_ms: Annotated[int, Field(ge=0)] = 20_000
    submit_pool: PoolSize = 2
    lease_pool: PoolSize = 12
    renew_pool: PoolSize = 9
    background_pool: PoolSize = 4
    node_beat_ms: Annotated[int, Field(ge=100, le=60_000)] = 2_000

    def key_ring(self) -> dict[int, bytes]:
        """Key number to key; the first one signs."""
        return read_key_ring(self.cluster_keys)


class DispatcherSettings(StoreSettings):
    """A dispatcher: how often its safety nets run, how much one round takes."""

    background_pool: Annotated[int, Field(ge=2, le=100)] = 4
    node_beat_ms: Annotated[int, Field(ge=100, le=60_000)] = 2_000
    route_scan_ms: Annotated[int, Field(ge=50, le=5_000)] = 750
    level_scan_ms: Annotated[int, Field(ge=50, le=5_000)] = 2_000
    expire_interval_ms: Annotated[int, Field(ge=50, le=1_000)] = 500
    round_pairs_max: Annotated[int, Field(ge=1, le=500)] = 500
    probe_host: str = "127.0.0.1"
    probe_port: Port | None = None


SettingsT = TypeVar("SettingsT", bound=StoreSettings)


def load_settings(kind: type[SettingsT]) -> SettingsT:
    """Read `kind` from the environment. Raises SettingsError, one line for all that is wrong."""
    nothing_given: dict[str, Any] = {}
    try:
        return kind(**nothing_given)
    except ValidationError as error:
        raise SettingsError("; ".join(_lines(error))) from None


def _lines(error: ValidationError) -> list[str]:
    lines = []
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        variable = ENV_PREFIX + "_".join(str(part) for part in item["loc"]).upper()
        said = (
            "is not set" if item["type"] == "missing" else item["msg"].removeprefix("Value error, ")
        )
        lines.append(f"{variable}: {said[:1].lower()}{said[1:]}")
    return lines
