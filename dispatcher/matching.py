"""Who gets what (OP-30): ready tasks of a queue against its free slots. Pure.

Where: between `peek_ready` and `claim_tasks`; the claim proves every pair again.
Promise: tasks go in the order priority (high first), available_at, id (ids rise with creation);
a task goes only to a session that declared exactly its route; the freest session gets it; no slot
and no task is used twice.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from dispatcher.slots import SlotPool
from store.dispatch import ReadyTask

OrderKey = tuple[int, datetime, str]


def dispatch_order(task: ReadyTask) -> OrderKey:
    """Sort key of OP-30."""
    return (-task.priority, task.available_at, task.task_id)


def match(
    ready: Iterable[ReadyTask],
    slots: SlotPool,
    pairs_max: int,
    barrier: OrderKey | None = None,
) -> list[tuple[ReadyTask, str]]:
    """Pair tasks with sessions, best first, and use up `slots`; at most `pairs_max` pairs.

    barrier: nothing that comes after it in order is given away, since tasks that were not read may
    come before that.
    """
    pairs: list[tuple[ReadyTask, str]] = []
    full: set[int] = set()
    used: set[str] = set()
    for task in sorted(ready, key=dispatch_order):
        if len(pairs) >= pairs_max or (barrier is not None and dispatch_order(task) > barrier):
            break
        if task.route_id in full or task.task_id in used:
            continue
        session_id = slots.take(task.route_id)
        if session_id is None:
            full.add(task.route_id)
        else:
            used.add(task.task_id)
            pairs.append((task, session_id))
    return pairs


def barrier_of(
    read: Mapping[int, list[ReadyTask]], is_cut_short: Callable[[int], bool]
) -> OrderKey | None:
    """The last task up to which all routes of a queue were read; None if all were read enough.

    read: what was read of each route, in order. is_cut_short: whether a route had slots for more
    than was asked for, and as many were read as asked.
    """
    ends = [dispatch_order(tasks[-1]) for route, tasks in read.items() if is_cut_short(route)]
    return min(ends, default=None)
