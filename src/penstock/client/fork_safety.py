"""Registers clients, so that a forked child gives up what its parent holds.

One hook per process (`os.register_at_fork`) spares each call to ask for its pid (rule 7).
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class _Forkable(Protocol):
    def after_fork_in_child(self) -> None: ...


_known: weakref.WeakSet[_Forkable] = weakref.WeakSet()


def remember(client: _Forkable) -> None:
    _known.add(client)


def forget(client: _Forkable) -> None:
    _known.discard(client)


def _in_child() -> None:
    for client in list(_known):
        client.after_fork_in_child()


os.register_at_fork(after_in_child=_in_child)
