"""The consumer: partitions read in place, and the members of groups."""
