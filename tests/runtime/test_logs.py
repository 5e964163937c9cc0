"""Logs: one JSON object a line, secrets masked, floods held back."""

import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from runtime.logs import LogLimiter, configure_logging, get_logger, mask_text

CREDENTIAL = "orbit_0123456789abcdef_" + "s" * 43


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_our_lines_and_those_of_libraries_have_one_shape(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logging("info", "json")
    get_logger("here").info("started", port=1, when=object)
    get_logger("here").debug("not shown")
    logging.getLogger("library").warning("odd %s", "thing")
    ours, theirs = lines(capsys)
    assert (ours["event"], ours["level"], ours["module"]) == ("started", "info", "here")
    assert (theirs["event"], theirs["level"]) == ("odd thing", "warning")
    assert set(ours) > {"timestamp"} <= set(theirs)


def test_secrets_are_masked_wherever_they_stand(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "json")
    log = get_logger("here")
    log.info("a", credential=CREDENTIAL, secret=b"hush", nested={"password": "hush"})
    log.info("connecting to redis://user:hush@host:1/0", found=f"Bearer {CREDENTIAL}!")
    try:
        raise OSError(f"no route to postgres://o:hush@h/d with {CREDENTIAL}")
    except OSError:
        log.exception("failed")
        logging.getLogger("library").exception("failed: %s", CREDENTIAL)
    text = capsys.readouterr().err
    assert "hush" not in text
    assert "s" * 43 not in text
    assert "orbit_0123456789abcdef_***" in text
    assert "redis://user:***@host:1/0" in text


def test_console_form_masks_too(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info", "console")
    get_logger("here").info("hello", found=CREDENTIAL)
    assert "s" * 43 not in capsys.readouterr().err


def test_text_without_secrets_is_untouched() -> None:
    for text in ("", "orbit_short_x", "http://host/path", "a@b"):
        assert mask_text(text) == text


def test_the_limiter_says_how_much_it_held_back() -> None:
    now = 0.0
    limiter = LogLimiter(5.0, clock=lambda: now)
    assert limiter.held_back() == 0
    assert [limiter.held_back() for _ in range(3)] == [None] * 3
    now = 5.0
    assert limiter.held_back() == 3
    assert limiter.held_back() is None
