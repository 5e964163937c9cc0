"""docs/transcripts.md says what is really said."""

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from orbit_sdk.conformance.contract import V1
from tests.contract.oracle import Direction, Version, accepts
from tests.transcripts.page import PAGE_FILE, page, replaced
from tests.transcripts.write import act

if TYPE_CHECKING:
    from devcluster.cluster import LocalCluster


@pytest.mark.cluster
@pytest.mark.timeout(120)
async def test_the_page_is_what_a_run_says(cluster: "LocalCluster") -> None:
    credential = await asyncio.to_thread(cluster.create_app, "transcripts", "default")
    acted = await act(cluster, credential)
    assert page(acted) == PAGE_FILE.read_text(), "run `make transcripts` and look at what changed"
    unknown = []
    for scene in acted:
        version: Version = "1" if scene.version is V1 else "2"
        for line in replaced(scene.lines):
            if isinstance(line.said, str):
                continue
            direction: Direction = (
                "serverFrame" if line.way.startswith("gateway") else "clientFrame"
            )
            if not accepts(json.dumps(line.said), direction, version):
                unknown.append(line.said["type"])
    malformed = ["task.cancel", "task.start"]
    assert unknown == malformed, "every frame but the malformed ones is of the contract"
