"""Clients on other hosts: what a node and its writers are to a local client, a carrier is here."""
