"""Many tasks in one call, and what happens when the same call is made again: nothing.

Start a cluster with `orbit dev`, export the two variables it prints, then run this file.
"""

import asyncio
import secrets

from orbit_sdk import AsyncClient, Submission, Worker

TASKS = 200

worker = Worker(queue="default", capacity=32)


@worker.handler("square")
async def square(number: int) -> int:
    return number * number


async def main() -> None:
    # A key names what is asked for. Take it from your own data, such as an order number; here each
    # run of this program is an order of its own.
    order = secrets.token_hex(4)
    orders = [
        Submission(handler="square", payload=number, key=f"square-{order}-{number}")
        for number in range(TASKS)
    ]
    serving = asyncio.create_task(worker.serve())
    async with AsyncClient() as client:
        first = await client.submit_batch(orders)
        again = await client.submit_batch(orders)
        accepted = [result.submitted for result in first if result.submitted is not None]
        repeats = [result.submitted for result in again if result.submitted is not None]
        print(f"accepted  {len(accepted)} of {len(orders)}")
        print(f"repeated  {sum(task.deduplicated for task in repeats)} were known already")
        print(f"same ids  {[task.id for task in accepted] == [task.id for task in repeats]}")
        tasks = await asyncio.gather(*(client.wait(task.id) for task in accepted))
        print(f"sum       {sum(task.result for task in tasks)}")
    worker.stop()
    await serving


if __name__ == "__main__":
    asyncio.run(main())
