"""The one way in which the SDK opens a socket; what it keeps quiet is tried on real servers too."""

import logging
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

import orbit_sdk
from orbit_sdk.upgrade import SocketLog, Upgrade
from tests.sdk.worker.served_gateway import CREDENTIAL, served_gateway


def test_every_socket_of_the_sdk_is_opened_this_way() -> None:
    root = Path(orbit_sdk.__file__).parent
    found = [
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if any(
            line.startswith(("from websockets", "import websockets")) and "connect" in line.split()
            for line in path.read_text().replace(",", " ").splitlines()
        )
    ]
    assert found == ["upgrade.py"]


@pytest.mark.parametrize(("level", "wanted"), [(10, False), (20, False), (30, True), (40, True)])
def test_its_log_begins_with_warnings(level: int, wanted: bool) -> None:
    logger = logging.getLogger("orbit_sdk.test_upgrade")
    logger.setLevel(logging.NOTSET + 1)
    assert SocketLog(logger).isEnabledFor(level) is wanted


async def test_a_redirect_is_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "orbit_sdk.socket")
    async with served_gateway() as gateway:
        gateway.refuse_with = 302
        with pytest.raises(InvalidStatus):
            async with Upgrade(
                f"ws://127.0.0.1:{gateway.port}/v1/worker/connect",
                additional_headers={"Authorization": f"Bearer {CREDENTIAL}"},
            ):
                pass
    seen = [record for record in caplog.records if record.name.startswith("orbit_sdk")]
    assert seen == []
