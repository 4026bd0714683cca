"""The replicator: the process with the replicas of a broker's partitions.

Each partition here has one `penstock.cluster.replica.Replica`. Where it leads, followers get the
batches of its log. Where it follows, the leader's batches go into a lane of the partition's writer.
The node says which partitions there are, and who leads them (`messages`).

Owns no log and no lane's memory. Nothing of it outlives the process but the high watermarks that it
writes down. Its death is the end of a life of the broker, and the next one begins from the logs.
"""
