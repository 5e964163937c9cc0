"""docs/transcripts.md says what is really said."""

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from tests.contract.oracle import Direction, accepts
from tests.transcripts.page import PAGE_FILE, page, replaced
from tests.transcripts.write import act, nodes_of

if TYPE_CHECKING:
    from devcluster.cluster import LocalCluster


@pytest.mark.cluster
@pytest.mark.timeout(120)
async def test_the_page_is_what_a_run_says(cluster: "LocalCluster") -> None:
    credential = await asyncio.to_thread(cluster.create_app, "transcripts", "default")
    acted = await act(nodes_of(cluster), credential)
    assert page(acted) == PAGE_FILE.read_text(), "run `make transcripts` and look at what changed"
    unknown = []
    for _, lines in acted:
        for line in replaced(lines):
            if isinstance(line.said, str):
                continue
            direction: Direction = (
                "serverFrame" if line.way.startswith("gateway") else "clientFrame"
            )
            if not accepts(json.dumps(line.said), direction):
                unknown.append(line.said["type"])
    assert unknown == ["task.cancel"], "every frame but the malformed one is of the contract"
