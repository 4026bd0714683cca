"""The log of one partition: batches, segments, indexes, recovery, producers."""
