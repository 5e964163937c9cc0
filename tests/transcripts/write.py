"""`make transcripts`: act every scene on a cluster of the moment and write the page."""

import asyncio
import tempfile
from pathlib import Path

from devcluster.cluster import LocalCluster
from tests.transcripts.page import PAGE_FILE, page
from tests.transcripts.scenes import SCENES, Scene
from tests.transcripts.stage import Line, stage_on


async def act(nodes: tuple[str, str], credential: str) -> list[tuple[Scene, list[Line]]]:
    """Every scene, each with a worker instance of its own, and what was said in it."""
    acted: list[tuple[Scene, list[Line]]] = []
    for scene in SCENES:
        async with stage_on(nodes, credential) as stage:
            await scene(stage)
            acted.append((scene, list(stage.lines)))
    return acted


def nodes_of(cluster: LocalCluster) -> tuple[str, str]:
    """The base URLs of its first two gateways."""
    first, second = (f"http://127.0.0.1:{node.port}" for node in cluster.gateways[:2])
    return first, second


def main() -> None:
    """Write PAGE_FILE anew."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)  # the account that Postgres runs as must get through
        with LocalCluster(folder) as cluster:
            credential = cluster.create_app("transcripts", "default")
            acted = asyncio.run(act(nodes_of(cluster), credential))
            cluster.erase()
    PAGE_FILE.write_text(page(acted))


if __name__ == "__main__":
    main()
