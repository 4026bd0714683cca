"""The protocol machines of one host and of many: raft, controller, replica, groups, shares,
transactions, access, quotas; and the frames that hosts exchange.

A machine is pure: events in, effects out, with time and randomness as arguments. `penstock.server`
runs them. Never imports `penstock.ipc`.
"""
