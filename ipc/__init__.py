"""One host: the shared-memory layout, lanes, state pages, doorbells, attach protocol and liveness.

Owns how processes of one machine hand records to a partition's writer and learn how far they may
read. Never imports `penstock.cluster`: what joins the two lives above both.
"""
