"""Settings of topics as people write them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.core import errors as er
from penstock.operations import values


def read_settings(given: Iterable[str]) -> dict[str, Any]:
    """Reads topic settings from KEY=VALUE; an empty value is None, the default."""
    from penstock.client.admin.topic_config import DURATIONS, RATIOS, SETTABLE, WORDS

    settings = [name for name in SETTABLE if name != "partitions"]
    found: dict[str, Any] = {}
    for key, text in values.assignments(given).items():
        if key not in settings:
            raise er.ConfigError(f"a topic has no setting {key!r}; there are {', '.join(settings)}")
        if not text:
            if key in WORDS:
                raise er.ConfigError(f"{key} has no empty value")
            found[key] = None
        elif key in WORDS:
            found[key] = text
        elif key in DURATIONS:
            found[key] = values.seconds(text)
        else:
            found[key] = values.ratio(text) if key in RATIOS else values.size(text)
    return found
