"""A producer's calls with its serializers. Without any there is nothing of it.

Owns encoding, and the errors of what cannot be encoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.client.session import as_topic
from penstock.core.errors import PenstockError
from penstock.serializers.serializer import EncodeError, Part, Serializer


class Encoders:
    """The serializers of a producer; None: bytes, as they are."""

    def __init__(self, value: Serializer[Any] | None, key: Serializer[Any] | None) -> None:
        self._serializers: dict[Part, Serializer[Any] | None] = {"value": value, "key": key}
        self._known: dict[tuple[str, Part], Any] = {}

    def encode(self, topic: str, part: Part, given: Any) -> Any:
        """Raises `EncodeError`, and what keeps a serializer from its registry."""
        serializer = self._serializers[part]
        if given is None or serializer is None:
            return given
        try:
            encode = self._known.get((topic, part))
            if encode is None:
                encode = serializer.encoder(as_topic(topic), part)
                self._known[topic, part] = encode
            return encode(given)
        except PenstockError:
            raise
        except Exception as error:
            raise EncodeError(
                f"the {part} for topic {topic!r} cannot be encoded by {serializer!r}: "
                f"{type(error).__name__}: {error}"
            ) from error

    def sending(self, send: Any) -> Any:
        """Returns a `send` that encodes."""

        def send_encoded(topic: str, value: Any, *, key: Any = None, **more: Any) -> Any:
            value = self.encode(topic, "value", value)
            key = self.encode(topic, "key", key)
            return send(topic, value, key=key, **more)

        return send_encoded

    def sending_batch(self, send_batch: Any) -> Any:
        """Returns a `send_batch` that encodes."""

        def send_batch_encoded(
            topic: str, values: Sequence[Any], *, keys: Sequence[Any] | None = None, **more: Any
        ) -> Any:
            values = [self.encode(topic, "value", one) for one in values]
            if keys is not None:
                keys = [self.encode(topic, "key", one) for one in keys]
            return send_batch(topic, values, keys=keys, **more)

        return send_batch_encoded


def encoders_of(value: Serializer[Any] | None, key: Serializer[Any] | None) -> Encoders | None:
    """Returns None where there is nothing to encode."""
    return None if value is None and key is None else Encoders(value, key)
