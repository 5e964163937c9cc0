"""The smallest whole program: a worker, a task, its result.

Start a cluster with `orbit dev`, export the two variables it prints, then run this file.
"""

import asyncio
from dataclasses import dataclass

from orbit_sdk import AsyncClient, Worker

worker = Worker(queue="default")


@dataclass
class Greeting:
    """What a task of `hello` carries."""

    name: str


@worker.handler("hello")
async def hello(greeting: Greeting) -> dict[str, str]:
    """Runs in this process, under a lease that the SDK keeps alive."""
    return {"text": f"Hello, {greeting.name}!"}


async def main() -> None:
    serving = asyncio.create_task(worker.serve())
    async with AsyncClient() as client:
        submitted = await client.submit("hello", {"name": "world"})
        print(f"accepted  {submitted.id}")
        task = await client.wait(submitted.id)
        print(f"settled   {task.state}  {task.result['text']}")
    worker.stop()
    await serving


if __name__ == "__main__":
    asyncio.run(main())
