"""Load generators, latency probes, peers measured beside Penstock, and the plots.

Run as `python -m penstock.bench`, never as a file of this folder. Nothing imports it but the
`bench` command of the CLI.
"""
