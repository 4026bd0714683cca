"""The gateway: remote clients, served over ZeroMQ by a process that is a client of the node itself.

loop         the poll loop: socket, descriptors, clocks; which message goes where
peers        connections: outboxes, signs of life, bounds
endpoints    what a connection has attached: one ordinary session to the node each
forwarding   requests of endpoints, one at a time, answered by the node
producing    batches checked and put into lanes, and the answers to them
committing   which of these answers wait until their batch is committed
fetching     what remote consumers are sent
membership   the cluster that the node is a broker of
counts       what all of these count
"""
