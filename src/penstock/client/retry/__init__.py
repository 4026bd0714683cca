"""Retries of plain groups: one bad record blocks nobody.

`policy` is what users say, `topics` names and makes the retry topics, `story` is what a copy in one
of them tells, `forwarder` writes copies and dead letters, and `runner` calls the handler.
"""
