"""Submitting tasks and asking about them, over HTTP.

`flows` decides (which request, when again, what the answer means) and does no IO; `sync_client` and
`async_client` only carry out its steps, so there is one retry logic for both.
"""
