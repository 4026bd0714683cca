"""Access on a node: who may do what, and the audit."""
