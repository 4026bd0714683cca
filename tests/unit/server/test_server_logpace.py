"""Log lines that strangers bring about are bounded by their kind, and what is left out is told."""

from __future__ import annotations

import logging

from penstock.server.security.log_rate import LogRateLimit


def test_lines_of_one_kind_are_bounded_and_others_are_not(caplog):
    now = [0.0]
    log = logging.getLogger("penstock.test.pace")
    log.addFilter(LogRateLimit(rate=5, clock=lambda: now[0]))
    caplog.set_level(logging.INFO, log.name)
    for number in range(1000):
        log.warning("refused: %d", number)
    assert 5 <= len(caplog.records) <= 6
    log.info("other")
    log.error("refused: %d", 1)
    assert [one.levelname for one in caplog.records[-2:]] == ["INFO", "ERROR"]
    now[0] = 2.0
    shown = len(caplog.records) - 2
    log.warning("refused: %d", 7)
    assert caplog.records[-1].getMessage() == (
        f"refused: 7 ({1000 - shown} lines like it were left out)"
    )
    log.warning("refused: %d", 8)
    assert caplog.records[-1].getMessage() == "refused: 8"
