"""The `penstock` command: noun then verb, data on stdout, narration on stderr."""
