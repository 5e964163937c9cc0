"""The probe: live touches nothing, ready says why not."""

import asyncio
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from runtime.probe import NotReady, probe_app, serve_probe


async def test_ready_shows_facts_or_the_reason() -> None:
    reasons: list[str] = []

    def readiness() -> dict[str, Any]:
        if reasons:
            raise NotReady(reasons[0])
        return {"degraded": False}

    transport = httpx.ASGITransport(probe_app(CollectorRegistry(), readiness))
    async with httpx.AsyncClient(transport=transport, base_url="http://probe") as client:
        answer = await client.get("/health/ready")
        assert answer.json() == {"status": "ready", "degraded": False}
        reasons.append("late: expire")
        answer = await client.get("/health/ready")
        assert (answer.status_code, answer.json()["reason"]) == (503, "late: expire")
        assert (await client.get("/health/live")).status_code == 200
        assert (await client.get("/metrics")).headers["content-type"].startswith("text/plain")
        assert (await client.get("/other")).status_code == 404


async def test_an_address_that_cannot_be_had_is_an_error() -> None:
    app = probe_app(CollectorRegistry(), dict)
    with pytest.raises(OSError, match=r"."):
        await serve_probe(app, "203.0.113.1", 1, asyncio.Event())
