"""The coordinator of a node: groups and transactions, decided one at a time and kept in one log.

    requests ──► coordinator ──► cluster.groups, cluster.transactions   decide records, replay them
    members  ──►     │   ▲
                     ▼   │ loading                                      fence, then replay
                  journal ─► mailbox ─► lane ─► writer ─► __coordinator-0
                  markers ───┘ └──────► lanes ─► writers of all partitions   control batches

`coordinator.Coordinator` joins these and is all that the node knows. Nothing here runs, and no
topic is made, before a client asks for a group or a transaction.
"""
