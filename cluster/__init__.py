"""Many hosts: here will live the protocol machines and the shell that runs them.

The machines (raft, controller, replica, groups, shares, transactions) are pure: events in, effects
out, with time and randomness as arguments. The shell gives them frames, a ZeroMQ transport, the
gateway and the fetcher. Never imports `penstock.ipc`.
"""
