"""Working off a queue: share groups, whose members get single records and answer for each.

`consumer` has the verbs, `jobs` what a worker gets, `leases` what is held and is to be answered,
`lease_reader` brings the leased records from the logs, `exchange` is the talk with the coordinator,
and `dead_letters` sets aside what cannot be done.
"""
