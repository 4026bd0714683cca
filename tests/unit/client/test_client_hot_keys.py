"""The sketch of frequent keys against exact counts, and the advice."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from seeds import seed_of_day

from penstock.client.admin.hot_keys import COUNTERS, ROOM, HotKey, HotPartition, KeySketch, advice

BATCHES = st.lists(st.lists(st.sampled_from([None, *(b"%d" % n for n in range(30))])), max_size=20)


@given(BATCHES, st.integers(1, 10))
def test_a_sketch_keeps_what_space_saving_promises(batches, counters):
    sketch, exact = KeySketch(counters), Counter[bytes | None]()
    for batch in batches:
        sketch.add(batch)
        exact.update(batch)
    assert sketch.total == exact.total()
    found = sketch.top(counters)
    assert len(found) == min(counters, len(exact))
    for key, count, error in found:
        assert count - error <= exact[key] <= count
        assert error <= exact.total() / counters
    kept = {key for key, _, _ in found}
    assert all(n <= exact.total() / counters for key, n in exact.items() if key not in kept)


def test_a_hot_key_among_a_million_distinct_ones_is_found():
    chance = random.Random(7)
    sketch = KeySketch(100)
    for _ in range(100):
        keys = [b"%d" % chance.randrange(1_000_000) for _ in range(900)] + [b"hot"] * 100
        chance.shuffle(keys)
        sketch.add(keys)
    [(key, count, error), *_] = sketch.top(1)
    assert key == b"hot"
    assert count - error <= 10_000 <= count


def test_the_top_of_a_million_skewed_keys_is_right():
    """By Zipf's law, and by more distinct keys than the sketch holds, so that it is cut down."""
    chance, distinct = np.random.default_rng(seed_of_day()), 1_000_000
    weights = np.cumsum(1 / np.arange(1, distinct + 1))
    sketch, exact = KeySketch(), Counter[bytes | None]()
    for _ in range(20):
        ranks = np.searchsorted(weights, chance.random(5_000) * weights[-1])
        keys = [b"%d" % rank for rank in ranks.tolist()]
        sketch.add(keys)
        exact.update(keys)
    assert len(exact) > 3 * COUNTERS * ROOM
    found = sketch.top(20)
    hottest = {key for key, _ in exact.most_common(5)}
    assert hottest <= {key for key, _, _ in found}
    for key, count, error in found:
        assert count - error <= exact[key] <= count
        assert error <= exact.total() / COUNTERS


def test_advice_names_the_key_and_what_suffixes_leave():
    busy = HotPartition("orders", 3, 100, 50.0, 0.7, [HotKey(b"ann", 80, 0, 0.8)])
    told = advice(busy, looked_at=4, partitions=4)
    assert told.startswith("key 'ann' is 80% of orders-3, which takes 70% of the topic: ")
    assert "spread={'ann': 3}" in told
    assert "('ann#0' to 'ann#2'), leave it about 33%" in told


def test_no_advice_where_no_key_or_no_partition_is_hot():
    busy = HotPartition("orders", 3, 100, 50.0, 0.7, [HotKey(b"ann", 80, 0, 0.8)])
    for quiet in (
        replace(busy, load=0.3),
        replace(busy, keys=[HotKey(b"ann", 9, 0, 0.09)]),
        replace(busy, keys=[HotKey(None, 80, 0, 0.8)]),
        replace(busy, keys=[]),
    ):
        assert advice(quiet, looked_at=4, partitions=4) == ""
    assert advice(busy, looked_at=1, partitions=1) == ""
