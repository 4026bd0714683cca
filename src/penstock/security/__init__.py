"""Keys of clients and servers, which both sides read."""
