"""Options of the transport, in kombu's `transport_options` and Celery's `broker_transport_options`.

Options of other transports, which Celery and its users set as well, are passed over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from penstock.client.admin.topic_config import TopicConfig, config_of
from penstock.client.transport import Transport
from penstock.client.validation import check_range, check_text
from penstock.core.errors import ConfigError

DAY: Final = 86_400.0
QUEUE_DEFAULTS: Final[dict[str, Any]] = {
    "retention": 7 * DAY, "hold_for": "groups", "segment_bytes": 64 << 20,
}  # fmt: skip
"""Of the topic of a queue. Retention takes what workers are through with, and nothing else."""
EXCHANGE_SETTINGS: Final[dict[str, Any]] = {
    "retention": 3600.0, "retention_bytes": 64 << 20, "segment_bytes": 16 << 20,
}  # fmt: skip
"""Of the topic of an exchange, which consumers read from its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportOptions:
    """Options of the transport; the guide explains them.

    keys: key file of this client, for tcp. transport: as of `penstock.connect`. prefix: what the
    names of its topics begin with. topic: settings of the topics of queues that are made, by the
    names of `TopicConfig`. max_deliveries, max_lease, dead_letters: as of a share consumer.
    publish_timeout: seconds that sending a message may take. session_timeout: seconds for which a
    worker that lost its connection by tcp keeps its messages. node_timeout: seconds without a node
    after which the connection counts as lost.
    """

    keys: str | None = None
    transport: Transport = "auto"
    prefix: str = "kombu."
    topic: Mapping[str, Any] = field(default_factory=dict)
    max_deliveries: int | None = 5
    max_lease: float | None = None
    dead_letters: str | None = "{topic}.dlq"
    publish_timeout: float = 30.0
    session_timeout: float = 10.0
    node_timeout: float = 30.0

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> TransportOptions:
        """Raises `ConfigError`, TypeError."""
        known = {one.name for one in fields(cls)}
        options = cls(**{name: value for name, value in given.items() if name in known})
        check_text("prefix", options.prefix)
        check_range("publish_timeout", options.publish_timeout, 0.1, DAY)
        check_range("session_timeout", options.session_timeout, 0.1, DAY)
        check_range("node_timeout", options.node_timeout, 0.1, DAY)
        options.queue_config()
        return options

    def queue_config(self) -> TopicConfig:
        """Settings of the topic of a queue."""
        if not isinstance(self.topic, Mapping):
            raise ConfigError(
                f"topic={self.topic!r} must be a dict of settings of a topic, such as "
                '{"partitions": 4}'
            )
        return config_of(None, {**QUEUE_DEFAULTS, **self.topic})
