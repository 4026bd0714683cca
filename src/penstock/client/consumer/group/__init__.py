"""Consuming by groups: who reads what is decided by the coordinator, how far is kept there.

`consumer` has the verbs, `membership` the talk with the coordinator, `reader` the reading half (a
`Consumer` of explicitly assigned partitions), `at_most_once` the path on which a commit comes
before the delivery, `consumed` what a transaction commits beside its records.
"""
