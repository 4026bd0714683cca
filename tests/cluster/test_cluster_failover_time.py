"""How long nothing is acknowledged when the leader of a partition is killed with -9: printed."""

from __future__ import annotations

import os
import statistics
import time

import pytest
from cluster_under_test import ClusterUnderTest
from seeds import tell

from penstock.testing.probe import Pulse

ROUNDS = int(os.environ.get("PENSTOCK_FAILOVER_ROUNDS", "2"))
MEDIAN_MAX = 3.0
JUDGED_FROM = 20
"""Rounds from which on the median is held to its bound: a few say too little on a busy machine."""

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(60 + ROUNDS * 60)]


def test_a_partition_goes_on_after_its_leader_is_killed(capsys):
    outages = []
    with ClusterUnderTest(options=DEFAULTS) as ground:
        topic = ground.cluster.create_topic(replication_factor=3, min_insync_replicas=2)
        for _ in range(ROUNDS):
            ground.await_in_sync()
            with Pulse(ground.connect, topic) as pulse:
                leader = ground.leader(topic)
                killed_at = time.monotonic()
                ground.leaves(leader, clean=False)
                pulse.await_beat(time.monotonic() + 0.05)
                outages.append(pulse.outage(killed_at))
                ground.returns(leader)
            assert leader.is_running
    median = statistics.median(outages)
    with capsys.disabled():
        told = " ".join(f"{each:.2f}" for each in sorted(outages))
        tell(f"\nseconds without an acknowledgement after kill -9 of a leader: {told}")
        tell(f"median {median:.2f} of {len(outages)}")
    assert ROUNDS < JUDGED_FROM or median <= MEDIAN_MAX


DEFAULTS = {"election_timeout": 1.0, "broker_session_timeout": 1.5}
"""What a cluster has that was not told, in place of what the other tests take."""
