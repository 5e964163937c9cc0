"""The httpx side of both shells: how a client is set up, and how its words become ours."""

from typing import TypedDict

import httpx

from orbit_sdk.address import cluster_url, credential_text
from orbit_sdk.client.limits import CONNECTIONS_MAX, EXCHANGE_TIMEOUT_S
from orbit_sdk.client.steps import Answer, NoAnswer, Send


class HttpSettings(TypedDict):
    """Constructor arguments that httpx.Client and httpx.AsyncClient share."""

    base_url: str
    headers: dict[str, str]
    limits: httpx.Limits
    timeout: float
    follow_redirects: bool


class RequestParts(TypedDict):
    """Arguments of one request that both kinds of client share."""

    method: str
    url: str
    content: bytes | None
    headers: dict[str, str]
    params: dict[str, str] | None
    timeout: float


def http_settings(url: str | None, credential: str | None) -> HttpSettings:
    """Settings for one cluster. Raises BadRequest or Unauthorized when an argument has no sense."""
    return {
        "base_url": cluster_url(url),
        "headers": {"Authorization": f"Bearer {credential_text(credential)}"},
        "limits": httpx.Limits(max_connections=CONNECTIONS_MAX),
        "timeout": EXCHANGE_TIMEOUT_S,
        "follow_redirects": False,  # Another host is no business of this credential.
    }


def request_parts(send: Send) -> RequestParts:
    """One step as httpx wants it."""
    return {
        "method": send.method,
        "url": send.path,
        "content": send.body,
        "headers": dict(send.headers),
        "params": dict(send.query) or None,
        "timeout": send.timeout_s,
    }


def answer_of(response: httpx.Response) -> Answer:
    """A response that has been read whole."""
    return Answer(response.status_code, response.headers, response.content)


def no_answer(error: httpx.RequestError) -> NoAnswer:
    """What a failure means for a repeat: did the request leave or not?"""
    unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    return NoAnswer(f"{type(error).__name__} {error}".strip(), sent=not unsent)
