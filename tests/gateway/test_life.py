"""A task's whole life over HTTP and the worker socket, on real stores (R-131, R-140)."""

import httpx

from tests.gateway.harness import App, Dispatcher, Gateway, submit, worker_on


async def test_submit_assign_start_renew_finish(
    http: httpx.AsyncClient, gateway: Gateway, app: App, dispatcher: Dispatcher
) -> None:
    answer = await submit(http)
    assert answer.status_code == 201, answer.text
    task_id = answer.json()["data"]["id"]
    async with worker_on(gateway, app) as worker:
        await dispatcher.dispatch(worker.session_id)
        given = await worker.assignment()
        assert given.task["id"] == task_id
        started = await worker.ask("task.start", given.ref)
        assert started["type"] == "ack", started
        assert started["body"]["lease"]["active"] is True
        assert started["body"]["receipt"]["operation"] == "start"
        renewed = await worker.ask("task.renew", given.ref)
        assert renewed["body"]["lease"]["state"] == "RUNNING"
        finished = await worker.ask(
            "task.finish", {"ref": given.ref, "outcome": "SUCCEEDED", "result": {"n": 1}}
        )
        assert finished["body"]["receipt"]["task_state"] == "SUCCEEDED"
        assert finished["body"]["lease"]["active"] is False
    task = (await http.get(f"/v1/tasks/{task_id}")).json()["data"]
    assert (task["state"], task["result"], task["attempt_count"]) == ("SUCCEEDED", {"n": 1}, 1)
    page = (await http.get(f"/v1/tasks/{task_id}/attempts")).json()["data"]
    assert [row["state"] for row in page["items"]] == ["SUCCEEDED"]
    assert page["next_cursor"] is None
