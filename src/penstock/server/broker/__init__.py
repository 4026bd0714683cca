"""A node as one broker of a cluster: what joins its quorum, its replicas and its topics."""
