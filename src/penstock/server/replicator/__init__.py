"""The replicator: the process in which the replicas of a broker's partitions live.

Each partition here has one `penstock.cluster.replica.Replica`. Where it leads, followers are sent
what stands in the log; where it follows, what the leader sends goes into a lane of the partition's
writer. Which partitions there are, and who leads them, the node says (`messages`).

Owns no log and no lane's memory. Nothing of it outlives the process but the high watermarks that it
writes down: its death is the end of a life of the broker, and the next one begins from the logs.
"""
