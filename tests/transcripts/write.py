"""`make transcripts`: act every scene on a cluster of the moment and write the page."""

import asyncio
import signal
import tempfile
from pathlib import Path

from devcluster.cluster import LocalCluster
from orbit_sdk.conformance.contract import V1, V2
from tests.transcripts.page import PAGE_FILE, page
from tests.transcripts.scenes import SCENES
from tests.transcripts.scenes_v2 import SCENES_V2
from tests.transcripts.stage import Acted, stage_on


async def act(cluster: LocalCluster, credential: str) -> list[Acted]:
    """Every scene, each with a worker instance of its own, and what was said in it.

    The last one stops the cluster's second gateway.
    """
    first, second = cluster.gateways[:2]
    nodes = (f"http://127.0.0.1:{first.port}", f"http://127.0.0.1:{second.port}")

    async def leave() -> None:
        second.process.signal(signal.SIGTERM)

    acted: list[Acted] = []
    for version, scenes in ((V1, SCENES), (V2, SCENES_V2)):
        for scene in scenes:
            async with stage_on(nodes, credential, leave) as stage:
                await scene(stage)
                acted.append(Acted(version, scene.__doc__ or "", list(stage.lines)))
    return acted


def main() -> None:
    """Write PAGE_FILE anew."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)  # the account that Postgres runs as must get through
        with LocalCluster(folder) as cluster:
            credential = cluster.create_app("transcripts", "default")
            acted = asyncio.run(act(cluster, credential))
            cluster.erase()
    PAGE_FILE.write_text(page(acted))


if __name__ == "__main__":
    main()
