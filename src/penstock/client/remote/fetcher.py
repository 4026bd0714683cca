"""The cursors of one attachment: the consumer's requests go out, and batches come in.

`RemoteFetcher` is shared by two threads. The consumer's opens cursors and gives credit, which never
blocks: it is posted to the carrier. The carrier's thread fills the cursors.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from penstock.client.remote.cursors import FarCursor
from penstock.cluster.frames import messages as fr

Post = Callable[[fr.Fetch | fr.More | fr.Drop], object]


class RemoteFetcher:
    """See `penstock.client.remote.cursors.Fetcher`. `post` is told in order and from any thread;
    once the endpoint is over it does nothing. `cursors`: those that are open, by number."""

    def __init__(self, endpoint: int, post: Post) -> None:
        self._endpoint = endpoint
        self._post = post
        self._numbers = itertools.count()
        self.cursors: dict[int, FarCursor] = {}
        self._epochs: dict[int, list[tuple[int, int]]] = {}
        self.waits_for = ""
        """Why a request of the same attachment is not answered yet, in words; written by the
        carrier's thread."""

    # --- the consumer's thread ---
    def open(
        self, page: int, topic_id: bytes, partition: int, offset: int, leader_epoch: int,
        committed: bool, credit: int,
    ) -> FarCursor:  # fmt: skip
        endpoint, number, post = self._endpoint, next(self._numbers), self._post

        def drop() -> None:
            self.cursors.pop(number, None)
            post(fr.Drop(endpoint, number))

        def give(nbytes: int) -> None:
            post(fr.More(endpoint, number, min(nbytes, fr.CREDIT_MAX)))

        credit = min(credit, fr.CREDIT_MAX)
        cursor = FarCursor(credit, give, drop)
        self.cursors[number] = cursor
        post(fr.Fetch(
            endpoint, number, page, topic_id, partition, offset, leader_epoch, committed, credit
        ))  # fmt: skip
        return cursor

    def epochs(self, page: int) -> list[tuple[int, int]]:
        return self._epochs.get(page, [])

    # --- the carrier's thread ---
    def heard(self, states: Iterable[fr.PageState]) -> None:
        """Takes leader epochs, where a state brings them."""
        for state in states:
            if state.epochs:
                self._epochs[state.page] = state.epochs

    def fail(self, number: int, message: fr.CursorFailed) -> None:
        cursor = self.cursors.pop(number, None)
        if cursor is not None:
            cursor.fail(message)
