"""Names that know what they are made of, so that a log line can tell it as fields too."""

from __future__ import annotations

from typing import Final

RESERVED_PREFIX: Final = "__"


class PartitionName(str):
    """`topic-partition` for people."""

    __slots__ = ("log_fields",)

    log_fields: dict[str, object]

    def __new__(cls, topic: str, partition: int) -> PartitionName:
        name = super().__new__(cls, f"{topic}-{partition}")
        name.log_fields = {"topic": topic, "partition": partition}
        return name


def is_internal(topic: str) -> bool:
    """Whether a topic is the node's own: users neither make, change nor see it."""
    return topic.startswith(RESERVED_PREFIX)
