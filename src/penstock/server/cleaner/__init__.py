"""The cleaner: retention and compaction, in a process of its own."""
