"""Posts parcels over HTTP for a worker whose socket does not serve; it decides nothing.

On the connection's own thread. An answer that is none, for whatever reason, is None: the relay
tries again, and the socket may be faster.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import httpx

from orbit_sdk.client.answers import data_of
from orbit_sdk.client.http import answer_of
from orbit_sdk.errors import OrbitError
from orbit_sdk.protocol.held import HeldError, HeldResult, HeldResults, is_sound
from orbit_sdk.worker.relay import Parcel

_log = logging.getLogger("orbit_sdk.worker")


class Courier:
    """One HTTP client, made when it is first needed. `credential` is asked for every parcel."""

    def __init__(self, url: str, credential: Callable[[], Awaitable[str]]) -> None:
        self._url = url
        self._credential = credential
        self._client: httpx.AsyncClient | None = None

    async def post(self, parcel: Parcel, timeout_s: float) -> list[HeldResult] | None:
        """The results of a parcel's items, or None; the credential is asked for within the time. A
        result that cannot be read comes as an error, which the others do not suffer from."""
        if self._client is None:
            self._client = httpx.AsyncClient(base_url=self._url, follow_redirects=False)
        try:
            async with asyncio.timeout(timeout_s):
                results = await self._post(self._client, parcel, timeout_s)
        except (httpx.HTTPError, OrbitError, TimeoutError) as error:
            text = f"{type(error).__name__}: {error}"
            _log.warning("%s over HTTP: %s", parcel.operation.value, text)
            return None
        _log.info("%s of %d attempts over HTTP", parcel.operation.value, len(results))
        return [result if is_sound(result) else _unreadable(result) for result in results]

    async def _post(
        self, client: httpx.AsyncClient, parcel: Parcel, timeout_s: float
    ) -> list[HeldResult]:
        response = await client.post(
            parcel.path,
            content=parcel.body,
            headers={
                "Authorization": f"Bearer {await self._credential()}",
                "Content-Type": "application/json",
            },
            timeout=timeout_s,
        )
        return data_of(answer_of(response), HeldResults).results

    async def close(self) -> None:
        """Close the client's connections."""
        if self._client is not None:
            await self._client.aclose()


def _unreadable(result: HeldResult) -> HeldResult:
    return HeldResult(index=result.index, status=result.status, error=HeldError("bad_answer"))
