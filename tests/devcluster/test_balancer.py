"""The balancer between clients and gateways, and its faults."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from devcluster.balancer import Balancer, ThreadedBalancer
from devcluster.processes import LOOPBACK, free_port


@asynccontextmanager
async def backend(name: bytes) -> AsyncIterator[int]:
    """A server that answers each line with its name and the line, and says goodbye at the end."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(name + b":" + line)
            writer.write(name + b":bye\n")
            await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, LOOPBACK, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def balancer(*backends: int) -> AsyncIterator[Balancer]:
    balancer = Balancer(backends)
    await balancer.start()
    try:
        yield balancer
    finally:
        await balancer.stop()


async def ask(port: int, line: bytes = b"hi\n") -> bytes:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    try:
        writer.write(line)
        return await reader.readline()
    finally:
        writer.close()


async def test_connections_go_round() -> None:
    async with backend(b"a") as a, backend(b"b") as b, balancer(a, b) as balanced:
        answers = [await ask(balanced.port) for _ in range(4)]
    assert sorted(answers) == [b"a:hi\n"] * 2 + [b"b:hi\n"] * 2


async def test_a_dead_backend_is_passed_over() -> None:
    async with backend(b"a") as a, balancer(free_port(), a) as balanced:
        assert [await ask(balanced.port) for _ in range(4)] == [b"a:hi\n"] * 4


async def test_backends_change_while_it_runs() -> None:
    async with backend(b"a") as a, backend(b"b") as b, balancer(a) as balanced:
        assert await ask(balanced.port) == b"a:hi\n"
        balanced.backends = [b]
        assert await ask(balanced.port) == b"b:hi\n"


async def test_without_a_living_backend_the_client_is_reset() -> None:
    async with balancer(free_port()) as balanced:
        with pytest.raises(ConnectionResetError):
            await ask(balanced.port)


async def test_a_client_that_has_finished_speaking_still_hears_the_answer() -> None:
    async with backend(b"a") as a, balancer(a) as balanced:
        reader, writer = await asyncio.open_connection(LOOPBACK, balanced.port)
        writer.write(b"hi\n")
        writer.write_eof()
        assert await reader.read() == b"a:hi\na:bye\n"
        writer.close()


async def test_a_large_body_arrives_whole() -> None:
    line = b"x" * 60_000 + b"\n"
    async with backend(b"a") as a, balancer(a) as balanced:
        reader, writer = await asyncio.open_connection(LOOPBACK, balanced.port, limit=100_000)
        writer.writelines([line] * 50)
        assert [await reader.readline() for _ in range(50)] == [b"a:" + line] * 50
        writer.close()


async def test_a_stall_keeps_sockets_open_and_bytes_waiting() -> None:
    async with backend(b"a") as a, balancer(a) as balanced:
        reader, writer = await asyncio.open_connection(LOOPBACK, balanced.port)
        balanced.stall()
        writer.write(b"hi\n")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await reader.readline()
        balanced.resume()
        assert await reader.readline() == b"a:hi\n"
        writer.close()


async def test_a_cut_resets_both_sides_and_new_connections_work() -> None:
    async with backend(b"a") as a, balancer(a) as balanced:
        reader, writer = await asyncio.open_connection(LOOPBACK, balanced.port)
        writer.write(b"hi\n")
        await reader.readline()
        balanced.cut()
        with pytest.raises(ConnectionResetError):
            await reader.readline()
        writer.close()
        assert await ask(balanced.port) == b"a:hi\n"


async def test_refusal() -> None:
    async with backend(b"a") as a, balancer(a) as balanced:
        balanced.refusing = True
        with pytest.raises(ConnectionResetError):
            await ask(balanced.port)
        balanced.refusing = False
        assert await ask(balanced.port) == b"a:hi\n"


async def test_latency_is_added_both_ways_without_holding_back_the_next_bytes() -> None:
    async with backend(b"a") as a, balancer(a) as balanced:
        balanced.latency_s = 0.05
        started = time.monotonic()
        reader, writer = await asyncio.open_connection(LOOPBACK, balanced.port)
        for _ in range(20):
            writer.write(b"hi\n")
            await asyncio.sleep(0)
        for _ in range(20):
            assert await reader.readline() == b"a:hi\n"
        writer.close()
    assert 0.1 <= time.monotonic() - started < 1.0


async def test_in_a_thread_of_its_own() -> None:
    async with backend(b"a") as a:
        balanced = ThreadedBalancer([free_port()]).start()
        try:
            balanced.set_backends([a])
            assert await ask(balanced.port) == b"a:hi\n"
            balanced.set_refusing(True)
            with pytest.raises(ConnectionResetError):
                await ask(balanced.port)
        finally:
            await asyncio.to_thread(balanced.stop)
            await asyncio.to_thread(balanced.stop)
