"""What becomes of a task that fails: tried again, given up at once, or put before a person.

Start a cluster with `orbit dev`, export the two variables it prints, then run this file.
The tracebacks on standard error are the worker's log: it shows what a handler raised.
"""

import asyncio

from orbit_sdk import AsyncClient, TaskContext, TaskFailed, TaskUnknown, Worker
from orbit_sdk.client.models import RetryPolicy

QUICKLY = RetryPolicy(max_attempts=3, initial_delay_ms=100, max_delay_ms=1_000)

worker = Worker(queue="default")


@worker.handler("mail.send")
async def send(ctx: TaskContext) -> dict[str, int]:
    """Any exception fails the attempt; the task is tried again after its delay."""
    if ctx.attempt_count < 3:
        raise ConnectionError("the mail server is busy")
    return {"attempts": ctx.attempt_count}


@worker.handler("mail.check")
async def check(address: str) -> None:
    """Trying again cannot help, so the task fails for good."""
    raise TaskFailed("no_such_address", {"address": address}, retryable=False)


@worker.handler("card.charge")
async def charge() -> None:
    """Nobody knows whether the money moved: repeating could charge twice, so a person decides."""
    raise TaskUnknown("bank_did_not_answer")


async def main() -> None:
    serving = asyncio.create_task(worker.serve())
    async with AsyncClient() as client:
        for handler in ("mail.send", "mail.check", "card.charge"):
            submitted = await client.submit(handler, "ada@example.org", retry=QUICKLY)
            task = await client.wait(submitted.id)
            print(f"{handler:<12} {task.state:<12} {task.error_code or task.result}")
            for attempt in await client.attempts(task.id):
                print(f"  attempt {attempt.epoch}  {attempt.state:<10} {attempt.error_code or ''}")
    worker.stop()
    await serving


if __name__ == "__main__":
    asyncio.run(main())
