"""Log lines as JSON: every line an object, its fields from typed values, odd text kept."""

from __future__ import annotations

import errno
import json
import logging
import re
import sys

import pytest

from penstock.core.errors import StorageError
from penstock.ipc.names import PartitionName
from penstock.server.node.log_format import JsonFormatter, iso_time


def lines_of(call, **record):
    """What `call(logger)` writes, as text."""
    written: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record):
            written.append(self.format(record))

    logger = logging.Logger("penstock.writer")
    handler = Keep()
    handler.setFormatter(JsonFormatter("writer-3"))
    logger.addHandler(handler)
    call(logger)
    assert not any("\n" in line for line in written)
    return [json.loads(line) for line in written]


def test_a_line_has_time_level_logger_process_message_and_its_fields():
    [line] = lines_of(
        lambda log: log.warning(
            "%s: refused %d: %s", PartitionName("or-ders", 3), 7, ValueError("no"), extra={"pid": 4}
        )
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line.pop("time"))
    assert line.pop("process_id") > 0
    assert line == {
        "level": "WARNING", "logger": "penstock.writer", "process": "writer-3",
        "message": "or-ders-3: refused 7: no", "topic": "or-ders", "partition": 3, "pid": 4,
        "reason": "no", "error": "ValueError",
    }  # fmt: skip


def test_what_the_call_says_wins_over_what_an_argument_tells():
    [line] = lines_of(lambda log: log.error("%s", OSError(5, "x"), extra={"reason": "better"}))
    assert (line["reason"], line["error"], line["errno"]) == ("better", "OSError", 5)


def test_an_error_of_the_storage_has_its_number():
    try:
        raise StorageError("full", retriable=True) from OSError(errno.ENOSPC, "no room")
    except StorageError as error:
        caught = error
    [line] = lines_of(lambda log: log.error("not written: %s", caught))
    assert line["reason"] == "full"
    assert line["error"] == "StorageError"


def test_a_traceback_is_one_field():
    def fail(log):
        try:
            raise RuntimeError("deep")
        except RuntimeError:
            log.exception("it failed")

    [line] = lines_of(fail)
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("RuntimeError: deep")


@pytest.mark.parametrize("text", ["a\nb", 'q"uote', "\udcff name", "\0\x1b[31m", "ünï\u2028"])
def test_any_text_is_one_line_of_json(text):
    [line] = lines_of(lambda log: log.info("%s", text, extra={"path": text}))
    assert "path" in line
    assert line["level"] in ("INFO", "'INFO'")


def test_values_that_are_no_json_are_shown_as_text():
    [line] = lines_of(lambda log: log.info("x", extra={"what": {1}, "type": sys}))
    assert line["what"] == [1]
    assert "module" in line["type"]


def test_times_are_utc_to_the_microsecond():
    assert iso_time(1_372_939_200.25) == "2013-07-04T12:00:00.250000Z"
