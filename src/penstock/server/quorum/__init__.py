"""The broker's part in the quorum: raft on its disk, links to the others, the active controller.

quorum = Quorum(config, folder, changed=...)
await quorum.start()
await quorum.register(endpoints, was_clean=...)
topic_id = await quorum.ask(CreateTopic(name, topic_id, 12, 3, 2, config))
"""

from __future__ import annotations

from penstock.server.quorum.quorum import Quorum

__all__ = ["Quorum"]
