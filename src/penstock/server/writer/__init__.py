"""The process of a writer."""
