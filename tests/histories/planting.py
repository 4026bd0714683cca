"""Anomalies planted into correct histories: what logs, readers and transactions may do wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from histories.ideal import Place
from histories.plot import Plot, plants


# --- between writers and the log ---
@plants("phantom")
def a_value_nobody_sent(plot: Plot) -> bool:
    _, row = plot.pick((w, r) for w, r in plot.rows() if r[2]) or (None, None)
    if row is None:
        return False
    row[3][plot.rng.randrange(len(row[3]))] = 999 << 32
    return True


@plants("phantom")
def a_send_that_was_never_announced(plot: Plot) -> bool:
    value = plot.pick(plot.read)
    for _, line in plot.every("sends"):
        line["r"] = [row for row in line["r"] if row[0] != value]
    return value is not None


@plants("failed write")
def it_failed_and_is_there(plot: Plot) -> bool:
    value = plot.pick(plot.read)
    if value is None:
        return False
    plot.lines[plot.sent[value][0]].append({"e": "fails", "t": 10**9, "r": [value]})
    return True


@plants("duplicate")
def the_same_value_further_on(plot: Plot) -> bool:
    found = plot.pick((w, r) for w, r in plot.rows(lambda who: "late-read_un" in who) if r[2])
    if found is None:
        return False
    row = found[1]
    row[3].append(plot.rng.choice(row[3]))
    row[2].append(row[2][-1] + 5)
    if row[4] is not None:
        row[4].append(-1)
    return True


@plants("duplicate")
def an_answer_names_another_place(plot: Plot) -> bool:
    value = plot.pick(v for v in plot.acked if v in plot.read)
    for _, line in plot.every("acks"):
        for row in line["r"]:
            if row[0] == value:
                row[3] += 1000
    return value is not None


@plants("inconsistent offsets")
def two_readers_differ(plot: Plot) -> bool:
    value = plot.pick(v for v, who in plot.read.items() if len(who) > 1 and plot.is_plain(v))
    if value is None:
        return False
    who = plot.pick(sorted(plot.read[value]))
    other = plot.pick(v for v in plot.sent if v != value)
    for _, row in plot.rows(lambda each: each == who):
        row[3][:] = [other if each == value else each for each in row[3]]
    return True


@plants("inconsistent offsets")
def two_answers_name_one_place(plot: Plot) -> bool:
    if len(plot.acked) < 2:
        return False
    a, b = plot.rng.sample(sorted(plot.acked), 2)
    for _, line in plot.every("acks"):
        for row in line["r"]:
            if row[0] == a:
                row[1:] = plot.acked[b]
    return True


def promised(plot: Plot) -> list[int]:
    return [v for v in plot.acked if plot.is_plain(v) or plot.txn(v) in plot.committed]


@plants("lost write")
def nobody_sees_an_acknowledged_value(plot: Plot) -> bool:
    value = plot.pick(v for v in promised(plot) if plot.below(plot.acked[v]))
    if value is None:
        return False
    plot.drop(value)
    return True


@plants("lost write")
def only_those_who_see_uncommitted_see_it(plot: Plot) -> bool:
    value = plot.pick(v for v in plot.acked if plot.txn(v) in plot.committed)
    if value is None:
        return False
    plot.drop(value, lambda who: plot.hellos[who].get("isolation") == "read_committed")
    return True


@plants("unseen")
def the_last_of_a_partition_never_comes(plot: Plot) -> bool:
    last: dict[Place, int] = {}
    for value, (topic, number, offset) in plot.acked.items():
        if plot.is_plain(value):
            known = last.get((topic, number))
            if known is None or plot.acked[known][2] < offset:
                last[topic, number] = value
    value = plot.pick(v for v in last.values() if not _read_behind(plot, plot.acked[v]))
    if value is None:
        return False
    place = plot.acked[value]
    plot.drop(value)
    for _, line in plot.every("ends"):
        line["r"] = [[t, n, place[2] if (t, n) == place[:2] else end] for t, n, end in line["r"]]
    return True


def _read_behind(plot: Plot, place: tuple[str, int, int]) -> bool:
    return any(tuple(row[:2]) == place[:2] and max(row[2]) > place[2]
               for _, row in plot.rows() if row[2])  # fmt: skip


@plants("torn transaction")
def a_part_of_a_transaction_is_gone(plot: Plot) -> bool:
    value = plot.pick(v for v in plot.sent if plot.txn(v) in plot.committed)
    if value is None:
        return False
    plot.drop(value)
    for _, line in plot.every("acks"):
        line["r"] = [row for row in line["r"] if row[0] != value]
    return True


@plants("lost ring write")
def what_shared_memory_took_is_gone(plot: Plot) -> bool:
    value = plot.pick(v for v in plot.acked if plot.is_plain(v))
    if value is None:
        return False
    plot.drop(value)
    for _, line in plot.every("acks"):
        for row in line["r"]:
            if row[0] == value:
                row[3] = -1
    return True


def _pairs(plot: Plot, fits: Callable[[int, int], bool]) -> Iterator[tuple[int, int]]:
    by_place: dict[Place, list[int]] = defaultdict(list)
    for value, (topic, number, _) in sorted(plot.acked.items(), key=lambda item: item[1]):
        by_place[topic, number].append(value)
    for values in by_place.values():
        for index, a in enumerate(values):
            yield from ((a, b) for b in values[index + 1 :] if fits(a, b))


@plants("non-monotonic send")
def two_of_a_writer_changed_places(plot: Plot) -> bool:
    found = plot.pick(_pairs(plot, lambda a, b: a >> 32 == b >> 32))
    if found is None:
        return False
    plot.exchange(*found)
    return True


@plants("stale order")
def an_older_record_went_behind_a_newer(plot: Plot) -> bool:
    def fits(a: int, b: int) -> bool:
        return plot.acked_at[a] < plot.sent[b][2] and a >> 32 != b >> 32

    found = plot.pick(_pairs(plot, fits))
    if found is None:
        return False
    plot.exchange(*found)
    return True


# --- readers ---
@plants("non-monotonic poll")
def a_reader_goes_back(plot: Plot) -> bool:
    found = plot.pick((w, r) for w, r in plot.rows() if len(r[2]) > 1)
    if found is None:
        return False
    row = found[1]
    for column in row[2:4]:
        column[0], column[1] = column[1], column[0]
    return True


@plants("non-monotonic poll")
def a_reader_gets_a_batch_again(plot: Plot) -> bool:
    found = plot.pick((w, line) for w, line in plot.every("polls") if any(r[2] for r in line["r"]))
    if found is None:
        return False
    who, line = found
    plot.lines[who].insert(plot.lines[who].index(line), dict(line))
    return True


@plants("skipped poll")
def a_reader_goes_past_one(plot: Plot) -> bool:
    found = plot.pick(
        row for who, row in plot.rows()
        if len(row[2]) > 2 and not plot.group("at-most-once")(who)
        and (plot.is_plain(row[3][1]) or plot.txn(row[3][1]) in plot.committed)
    )  # fmt: skip
    if found is None:
        return False
    for column in found[2:]:
        if column is not None:
            del column[1]
    return True


@plants("unowned poll")
def nobody_gave_it_that_partition(plot: Plot) -> bool:
    who = plot.pick({w for w, row in plot.rows() if row[2] and w in plot.hellos})
    if who is None:
        return False
    plot.lines[who] = [line for line in plot.lines[who] if line["e"] not in ("assigned", "sought")]
    return True


@plants("unowned poll")
def it_was_taken_away_before(plot: Plot) -> bool:
    found = plot.pick((w, line) for w, line in plot.every("polls") if any(r[2] for r in line["r"]))
    if found is None:
        return False
    who, line = found
    places = [row[:2] for row in line["r"]]
    at = plot.lines[who].index(line)
    plot.lines[who].insert(at, {"e": "revoked", "t": line["t"], "r": places})
    return True


# --- transactions ---
@plants("aborted read")
def an_aborted_record_is_seen(plot: Plot) -> bool:
    late = "late-read_committed"
    values = [v for v in plot.acked if plot.txn(v) in plot.aborted]
    plot.rng.shuffle(values)
    return any(plot.insert(late, value, plot.acked[value]) for value in values)


@plants("aborted read")
def its_transaction_was_aborted(plot: Plot) -> bool:
    seen = {plot.txn(v) for _, row in plot.rows(lambda who: "late-read_c" in who) for v in row[3]}
    found = plot.pick(line for who, line in plot.every("ended") if (who, line["n"]) in seen)
    if found is None:
        return False
    found["outcome"] = "aborted"
    return True


@plants("aborted read")
def nobody_asked_for_the_commit(plot: Plot) -> bool:
    seen = {plot.txn(v) for _, row in plot.rows(lambda who: "late-read_c" in who) for v in row[3]}
    found = plot.pick(t for t in seen if t is not None)
    if found is None:
        return False
    who, n = found
    plot.lines[who] = [
        line for line in plot.lines[who]
        if not (line["e"] in ("ending", "ended") and line["n"] == n)
    ]  # fmt: skip
    return True


@plants("precommitted read")
def it_was_seen_before_the_commit(plot: Plot) -> bool:
    seen = {plot.txn(v) for _, row in plot.rows(lambda who: "late-read_c" in who) for v in row[3]}
    found = plot.pick(line for who, line in plot.every("ending") if (who, line["n"]) in seen)
    if found is None:
        return False
    found["t"] = 10**9
    return True


def _committed_with_places(plot: Plot) -> dict[tuple[str, int], tuple[str, int, int]]:
    found = {}
    for value, place in plot.acked.items():
        txn = plot.txn(value)
        if txn in plot.committed and plot.read[value]:
            found[txn] = place
    return found


def _consume(plot: Plot, txn: tuple[str, int], place: tuple[str, int, int]) -> None:
    who, n = txn
    at = next(i for i, x in enumerate(plot.lines[who]) if x["e"] == "begin" and x["n"] == n)
    row = [place[0], place[1], place[2], place[2] + 1]
    plot.lines[who].insert(at + 1, {"e": "inputs", "t": 0, "n": n, "r": [row]})


@plants("G1c")
def two_transactions_consumed_each_other(plot: Plot) -> bool:
    found = _committed_with_places(plot)
    if len(found) < 2:
        return False
    a, b = plot.rng.sample(sorted(found), 2)
    _consume(plot, a, found[b])
    _consume(plot, b, found[a])
    return True


@plants("G1c")
def three_in_a_ring(plot: Plot) -> bool:
    found = _committed_with_places(plot)
    if len(found) < 3:
        return False
    ring = plot.rng.sample(sorted(found), 3)
    for index, txn in enumerate(ring):
        _consume(plot, txn, found[ring[index - 1]])
    return True


@plants("G1c")
def a_transaction_consumed_itself(plot: Plot) -> bool:
    found = _committed_with_places(plot)
    if not found:
        return False
    txn = plot.rng.choice(sorted(found))
    _consume(plot, txn, found[txn])
    return True
