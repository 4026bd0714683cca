"""The node: data folder, tables, topics, attached clients, and the lanes between them."""
