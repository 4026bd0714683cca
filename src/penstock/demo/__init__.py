"""The demo: a year of flights through a real node, with a writer killed half-way.

    parent ── starts a node in a temporary folder, a producer and a consumer process
       │      kills -9 a writer process once half of the records are acknowledged
       └───── judges what the consumer saw, shows it, and cleans up

The children speak JSON lines over pipes (`children`). Owns nothing of the queue itself: it uses the
public API and nothing else, so it is also the longest example of it.
"""
