"""One request, repeated until it is answered for good or the deadline has come. Pure.

Repeats happen after a connect error, a timeout, 429, 502, 503 and 504, with a capped, jittered
backoff that honours Retry-After, and always carry the bytes and the key of the first (R-096).
"""

from dataclasses import replace

from orbit_sdk.backoff import Backoff
from orbit_sdk.client.answers import refusal, retry_after_s
from orbit_sdk.client.limits import EXCHANGE_TIMEOUT_S, RETRY_CAP_S, RETRY_FIRST_S
from orbit_sdk.client.steps import Answer, Flow, NoAnswer, Pause, Reply, Send, Surroundings
from orbit_sdk.errors import RETRYABLE_STATUSES, OrbitError, Unavailable

_BACKOFF = Backoff(first_s=RETRY_FIRST_S, cap_s=RETRY_CAP_S)


def exchange(send: Send, around: Surroundings, deadline: float) -> Flow[Answer]:
    """The first answer that is not about passing trouble, be it a success or a refusal.

    Raises Unavailable or RateLimited when the deadline (monotonic) leaves no room for another try.
    """
    tries = 0
    while True:
        left = deadline - around.clock()
        reply = yield replace(send, timeout_s=max(0.001, min(EXCHANGE_TIMEOUT_S, left)))
        if isinstance(reply, Answer) and reply.status not in RETRYABLE_STATUSES:
            return reply
        tries += 1
        trouble = _trouble(reply, send)
        wait_s = _BACKOFF.delay_s(tries, around.share())
        if isinstance(reply, Answer):
            wait_s = max(wait_s, retry_after_s(reply.headers) or 0.0)
        if not _may_repeat(send, reply) or around.clock() + wait_s >= deadline:
            trouble.details.setdefault("tries", tries)
            raise trouble
        yield Pause(wait_s)


def _may_repeat(send: Send, reply: Reply) -> bool:
    """A refusal for passing trouble changed nothing, and an unsent request did not either."""
    return send.repeatable or isinstance(reply, Answer) or not _maybe_done(reply)


def _maybe_done(reply: Reply) -> bool:
    return isinstance(reply, NoAnswer) and reply.sent


def _trouble(reply: Reply, send: Send) -> OrbitError:
    if isinstance(reply, Answer):
        error = refusal(reply)
    else:
        reason = reply.reason if reply is not None else "no reply"
        error = Unavailable("unreachable", f"no answer from the cluster ({reason})", retryable=True)
    key = send.headers.get("Idempotency-Key")
    if key is not None:
        error.details["idempotency_key"] = key
    return error
