"""The names of the topics that remote clients may touch, by the ids that batches and fetches carry.

The node's own topics are not among them. An unknown id is asked for at the node, and whoever needs
it waits for that.
"""

from __future__ import annotations

from collections.abc import Callable


class Directory:
    """`wanted` is called once for an id that is not known; it asks the node, then `learn`."""

    def __init__(self, refresh: Callable[[], None]) -> None:
        self._names: dict[bytes, str] = {}
        self._refresh = refresh
        self._waiting: list[tuple[bytes, Callable[[str | None], None]]] = []

    def name_of(self, topic_id: bytes) -> str | None:
        """What is known at once."""
        return self._names.get(topic_id)

    def find(self, topic_id: bytes, then: Callable[[str | None], None]) -> None:
        """Tell `then` the name, at once or when the node was asked; None: there is no such topic
        for remote clients."""
        name = self._names.get(topic_id)
        if name is not None:
            then(name)
            return
        self._waiting.append((topic_id, then))
        if len(self._waiting) == 1:
            self._refresh()

    def learn(self, names: dict[bytes, str]) -> None:
        """All topics that there are, as the node just said."""
        self._names = names
        waiting, self._waiting = self._waiting, []
        for topic_id, then in waiting:
            then(names.get(topic_id))
