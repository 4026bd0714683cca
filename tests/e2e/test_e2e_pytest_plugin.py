"""The pytest plugin as its users have it: runs of pytest in a folder of their own."""

from __future__ import annotations

import os
import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from cli_runner import SOURCE

from penstock.testing import wait_until

pytest_plugins = ["pytester"]

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide"
# Where the checkout is installed the plugin is found as users find it.
PLUGIN = [] if entry_points(group="pytest11", name="penstock") else ["-p", "penstock.pytest_plugin"]


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """Where the brokers of those runs put their folders; nothing may be left in it."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(SOURCE), prepend=os.pathsep)
    return folder


@pytest.fixture
def run(pytester, scratch):
    def run(*arguments, **outcomes):
        result = pytester.runpytest_subprocess(*PLUGIN, *arguments, timeout=60)
        wait_until(lambda: not list(scratch.iterdir()), 20, lambda: str(list(scratch.iterdir())))
        if outcomes:
            result.assert_outcomes(**outcomes)
        return result

    return run


@pytest.mark.parametrize(
    ("page", "count", "passed"),
    [("testing", 5, 4), ("testing-work-queues", 3, 2), ("services", 4, 3)],
)
def test_the_guide_shows_tests_that_pass(pytester, run, page, count, passed):
    text = (GUIDE / f"{page}.md").read_text()
    files = re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", text, re.DOTALL)
    assert len(files) >= count
    for name, content in files:
        (pytester.path / name).write_text(content)
    run("--strict-markers", "-W", "error", passed=passed)


def test_the_billing_application_has_fifteen_lines_and_its_test_ten():
    text = (GUIDE / "services.md").read_text()
    files = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", text, re.DOTALL))
    lines = {name: len([line for line in files[name].split("\n") if line]) for name in files}
    assert lines["billing.py"] <= 15
    assert lines["test_billing.py"] <= 10


def test_a_test_has_a_broker_of_its_own_and_a_module_shares_one(pytester, run):
    pytester.makepyfile(
        test_first="""
            import pytest
            pytestmark = pytest.mark.penstock(partitions=2)
            seen = []

            @pytest.mark.parametrize("turn", range(2))
            def test_own(penstock_broker, turn):
                penstock_broker.create_topic("t")
                seen.append(penstock_broker.url)

            def test_module(penstock_broker_module, penstock_broker_session):
                penstock_broker_module.create_topic("t")
                penstock_broker_session.create_topic("t")
                with penstock_broker_module.connect() as client:
                    assert len(client.admin().describe_topic("t").partitions) == 2
                seen.append(penstock_broker_module.url)

            def test_same(penstock_broker_module):
                assert penstock_broker_module.url == seen[-1]
                assert len(set(seen)) == 3
        """,
        test_second="""
            def test_session(penstock_broker_session, penstock_broker_module):
                penstock_broker_module.create_topic("t")
                with penstock_broker_session.connect() as client:
                    assert client.admin().list_topics() == ["t"]
                    assert len(client.admin().describe_topic("t").partitions) == 1
        """,
    )
    run(passed=5)


def test_the_marker_comes_before_the_ini_file(pytester, run):
    pytester.makeini("""
        [pytest]
        penstock_partitions = 3
        penstock_durability = fsync
        penstock_options =
            topics_max = 1
    """)
    pytester.makepyfile("""
        import pytest
        import penstock

        @pytest.mark.penstock(partitions=2)
        def test_it(penstock_broker):
            topic = penstock_broker.create_topic()
            with penstock_broker.connect() as client:
                described = client.admin().describe_topic(topic)
            assert (len(described.partitions), described.settings["durability"]) == (2, "fsync")
            with pytest.raises(penstock.PenstockError, match="topics_max"):
                penstock_broker.create_topic()
    """)
    run(passed=1)


@pytest.mark.parametrize(
    ("ini", "marker", "message"),
    [
        ("penstock_partitions = many", "", "*penstock_partitions = 'many'*int is wanted*"),
        ("penstock_options = lanes_max", "", "*'lanes_max' is not NAME=VALUE*"),
        ("", "4", "*pytest.mark.penstock(4,): it takes names with values only*"),
        ("", "lane_max=4", "*unrecognized arguments: --lane-max 4*"),
    ],
)
def test_a_wrong_option_is_named(pytester, run, ini, marker, message):
    pytester.makeini(f"[pytest]\n{ini}")
    pytester.makepyfile(f"""
        import pytest

        @pytest.mark.penstock({marker})
        def test_it(penstock_broker): pass
    """)
    run(errors=1).stdout.fnmatch_lines([message])


def test_a_failure_shows_the_log_of_the_node(pytester, run):
    pytester.makepyfile("""
        def test_it(penstock_broker):
            penstock_broker.create_topic("orders")
            assert False
    """)
    run(failed=1).stdout.fnmatch_lines(
        ["*log of penstock_broker*", "*topic orders created: 1 partitions"]
    )


@pytest.mark.parametrize(
    ("end", "arguments"),
    [
        ("os.kill(os.getpid(), 9)", ()),
        ("os.killpg(os.setpgid(0, 0) or 0, 9)", ()),
        ("os.kill(os.getpid(), 15)", ()),
        ("raise KeyboardInterrupt", ()),
        ("time.sleep(60)", ("--timeout=0.5", "--timeout-method=thread")),
        ("time.sleep(60)", ("--timeout=0.5", "--timeout-method=signal")),
    ],
)
def test_nothing_is_left_when_a_run_ends_early(pytester, run, end, arguments):
    pytester.makepyfile(f"""
        import os, time
        from penstock.testing import produce

        def test_it(penstock_broker, penstock_broker_session):
            produce(penstock_broker_session, penstock_broker_session.create_topic(), [b"1"])
            with penstock_broker.connect() as client, client.producer() as producer:
                producer.send_and_wait(penstock_broker.create_topic(), b"1")
                {end}
    """)
    assert run(*arguments).ret != 0
