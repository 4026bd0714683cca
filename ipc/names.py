"""Names that know what they are made of, so that a log line can tell it as fields too."""

from __future__ import annotations


class PartitionName(str):
    """`topic-partition` for people."""

    __slots__ = ("partition", "topic")

    topic: str
    partition: int

    def __new__(cls, topic: str, partition: int) -> PartitionName:
        name = super().__new__(cls, f"{topic}-{partition}")
        name.topic = topic
        name.partition = partition
        return name

    @property
    def log_fields(self) -> dict[str, object]:
        return {"topic": self.topic, "partition": self.partition}
