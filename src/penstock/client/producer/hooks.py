"""A producer's `send` with its hook, which may add headers. Without one there is nothing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.client.producer.config import SendHook


def hooked(send: Any, on_send: SendHook) -> Any:
    """Returns a `send` that takes its headers from the hook."""

    def send_with_hook(
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Any = None,
        **more: Any,
    ) -> Any:
        headers = on_send(topic, value, key, headers)
        return send(topic, value, key=key, headers=headers, **more)

    return send_with_hook
