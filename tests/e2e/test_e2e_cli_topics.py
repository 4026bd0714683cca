"""`penstock topic ...`, the common options, and what every command does with mistakes."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

import pytest
from cli_runner import COMMAND, call_cli, environment, run_cli

from penstock.testing import Broker


@pytest.fixture(scope="module")
def cli(node):
    """A command on that node, within this process."""
    return lambda *arguments: call_cli(*arguments, url=node.url)


def names_of(cli):
    return cli("topic", "list").lines


def test_a_topic_from_its_creation_to_its_end(node):
    def cli(*arguments):
        return call_cli(*arguments, url=node.url)

    made = run_cli(  # by a process, as a shell does
        "topic", "create", "life", "-p", "2", "-c", "segment_bytes=1MiB", "-c", "durability=fsync",
        url=node.url,
    )  # fmt: skip
    assert (made.code, made.out) == (0, b"")
    assert "created topic life with 2 partitions" in made.err
    assert "life" in names_of(cli)

    [found] = cli("topic", "describe", "life", "--format", "json").objects
    assert found["settings"]["segment_bytes"] == 1 << 20
    assert found["settings"]["durability"] == "fsync"
    assert [part["status"] for part in found["partitions"]] == ["online", "online"]

    changed = cli("topic", "config", "life", "segment_bytes=2MB", "flush-interval=250ms", "-q")
    assert (changed.code, changed.out, changed.err) == (0, b"", "")
    [settings] = cli("topic", "config", "life", "--format", "json").objects
    assert (settings["segment_bytes"], settings["flush_interval"]) == (2_000_000, 0.25)
    assert cli("topic", "config", "life", "segment_bytes=").code == 0
    assert "segment_bytes=" in cli("topic", "config", "life").lines

    assert cli("topic", "add-partitions", "life", "3").code == 0
    [summary] = cli("topic", "list", "lif?", "--format", "json").objects
    assert (summary["name"], summary["partitions"], summary["offsets"]) == ("life", 3, 0)

    assert cli("topic", "delete", "life", "--yes").code == 0
    assert "life" not in names_of(cli)


def test_retention_and_cleanup_are_set_when_made_and_changed_later(cli):
    made = cli(
        "topic", "create", "kept", "--retention", "7d", "--retention-bytes", "10GB",
        "--cleanup", "delete,compact",
    )  # fmt: skip
    assert made.code == 0
    [settings] = cli("topic", "config", "kept", "--format", "json").objects
    assert (settings["retention"], settings["retention_bytes"]) == (604_800.0, 10**10)
    assert settings["cleanup"] == "compact,delete"
    assert "retention=7d" in cli("topic", "config", "kept").lines
    assert "retention=7d  " in cli("topic", "describe", "kept").lines[1]
    changed = cli("topic", "config", "kept", "retention=", "min_dirty_ratio=20%", "cleanup=delete")
    assert changed.code == 0
    [settings] = cli("topic", "config", "kept", "--format", "json").objects
    assert (settings["retention"], settings["min_dirty_ratio"]) == (None, 0.2)
    refused = cli("topic", "config", "kept", "cleanup=shred")
    assert refused.code == 2
    assert "allowed are delete, compact, compact,delete" in refused.err


def test_tables_are_aligned_and_never_cut(cli):
    name = "n" * 190
    assert cli("topic", "create", name, "short").code == 0
    lines = cli("topic", "list", "--format", "wide").lines
    assert any(line.startswith(name + "  ") for line in lines)
    assert len({line.index("os") for line in lines[1:]}) == 1
    wide = cli("topic", "describe", "short", "--format", "wide").lines
    assert "DUPLICATES" in wide[2]


def test_creating_what_is_there(cli):
    assert cli("topic", "create", "twice").code == 0
    again = cli("topic", "create", "twice")
    assert again.code == 1
    assert again.err.startswith("penstock: ")
    assert "twice" in again.err
    assert cli("topic", "create", "twice", "--if-not-exists").code == 0


def test_some_of_several_topics_is_partly_done(cli):
    made = cli("topic", "create", "twin", "twin")
    assert made.code == 4
    seen = cli("topic", "describe", "twin", "nobody", "--format", "json")
    assert (seen.code, [entry["name"] for entry in seen.objects]) == (4, ["twin"])
    assert cli("topic", "describe", "nobody").code == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["create", "bad name"],
        ["create", ".."],
        ["create", "x" * 201],
        ["create", "\udcff"],
        ["create", "fine", "-p", "0"],
        ["create", "fine", "-p", "-1"],
        ["create", "fine", "-p", "many"],
        ["create", "fine", "-c", "nonsense=1"],
        ["create", "fine", "-c", "segment_bytes"],
        ["create", "fine", "-c", "segment_bytes=1parsec"],
        ["create", "fine", "-c", "segment_bytes=1"],
        ["create", "fine", "-c", "segment_age=soon"],
        ["create", "fine", "-c", "durability=sometimes"],
        ["create"],
        ["config", "fine", "durability="],
        ["add-partitions", "fine", "0"],
        ["list", "--format", "xml"],
        ["list", "--timeout", "-1"],
        ["list", "--no-such-option"],
        ["rename", "a", "b"],
    ],
)
def test_mistakes_are_usage_errors_without_a_traceback(cli, arguments):
    ran = cli("topic", *arguments)
    assert ran.code == 2
    assert ran.out == b""
    assert ran.err
    assert "Traceback" not in ran.err
    assert "fine" not in names_of(cli)


def test_a_topic_cannot_shrink(cli):
    cli("topic", "create", "wide", "-p", "3")
    ran = cli("topic", "add-partitions", "wide", "2")
    assert ran.code == 2
    assert "shrink" in ran.err


def test_deleting_asks_or_wants_a_yes(node, cli):
    cli("topic", "create", "precious")
    run_cli("produce", "precious", url=node.url, stdin=b"one\ntwo\n")
    dry = cli("topic", "delete", "precious", "--dry-run")
    assert dry.code == 0
    assert "2 offsets" in dry.lines[0]
    refused = run_cli("topic", "delete", "precious", url=node.url)
    assert refused.code == 2
    assert "--yes" in refused.err
    assert "precious" in names_of(cli)


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"y\n", 0)])
def test_a_terminal_is_asked_before_a_topic_goes(node, cli, answer, code):
    cli("topic", "create", "asked", "--if-not-exists")
    parent, child = pty.openpty()
    try:
        process = subprocess.Popen(
            [*COMMAND, "topic", "delete", "asked"],
            stdin=child,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(node.url),
        )
        os.write(parent, answer)
        _, err = process.communicate(timeout=30)
    finally:
        os.close(parent)
        os.close(child)
    assert process.returncode == code
    assert b"Delete asked" in err
    assert ("asked" in names_of(cli)) == (code != 0)


def test_common_options_stand_before_or_behind_the_command(node, cli):
    cli("topic", "create", "placed")
    before = call_cli("-b", node.url, "--format", "json", "topic", "list", "placed")
    behind = run_cli("topic", "list", "placed", "-b", node.url, "--format", "json")
    assert before.objects == behind.objects != []
    inner = call_cli("-b", "shm:///nowhere", "topic", "list", "placed", "-b", node.url)
    assert inner.lines == ["placed"]


@pytest.mark.parametrize(
    "url", ["nonsense", "http://host", "tcp://host:port", "shm://no/such", "shm://a b"]
)
def test_a_url_that_cannot_be_meant_is_a_usage_error(url):
    ran = call_cli("topic", "list", url=url)
    assert ran.code == 2
    assert ran.err.startswith("penstock: ")
    assert ran.err.count("\n") == 1


def test_nobody_at_the_address_is_one_line_that_says_what_to_do(tmp_path):
    ran = run_cli("topic", "list", "--timeout", "0.2", url=f"shm://{tmp_path}")
    assert ran.code == 1
    assert str(tmp_path) in ran.err
    assert "penstock serve" in ran.err
    assert ran.err.count("\n") == 1
    loud = call_cli("-vv", "topic", "list", "--timeout", "0.2", url=f"shm://{tmp_path}")
    assert loud.code == 1
    assert "Traceback" in loud.err


@pytest.mark.local("on another host it is not connected: nobody there could take it for alive")
def test_a_node_that_does_not_answer_is_a_timeout():
    with Broker() as node:
        os.kill(node.pid, signal.SIGSTOP)
        try:
            ran = run_cli("topic", "list", "--timeout", "0.3", url=node.url)
        finally:
            os.kill(node.pid, signal.SIGCONT)
    assert ran.code == 3
    assert "Traceback" not in ran.err


def test_the_version_is_told_without_loading_the_command_line():
    program = (
        "import sys; from penstock.cli import main; code = main(['--version']); "
        "print(code, [name for name in ('typer', 'numpy', 'msgspec') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env=environment(), check=True
    )
    version, rest = done.stdout.decode().splitlines()
    assert version.startswith("penstock ")
    assert rest == "0 []"
    assert call_cli("version").lines == call_cli("-v", "--version").lines == [version]
    as_module = [sys.executable, "-m", "penstock", "--version"]
    done = subprocess.run(as_module, capture_output=True, env=environment(), check=True)
    assert done.stdout.decode().splitlines() == [version]
    [parts] = call_cli("version", "--format", "json").objects
    assert f"penstock {parts['penstock']}" == version


def test_administration_does_without_numpy(node):
    program = (
        "import sys; from penstock.cli import main; code = main(['topic', 'list']); "
        "print(code, 'numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env=environment(node.url), check=True
    )
    assert done.stdout.decode().splitlines()[-1] == "0 False"


@pytest.mark.parametrize(
    "command",
    [
        [], ["serve"], ["demo"], ["produce"], ["consume"], ["version"], ["topic"],
        ["topic", "create"], ["topic", "list"], ["topic", "describe"], ["topic", "config"],
        ["topic", "add-partitions"], ["topic", "trim"], ["topic", "delete"], ["log"],
        ["log", "dump"], ["log", "verify"], ["verify"], ["verify", "producer"],
        ["verify", "consumer"], ["transaction"], ["transaction", "list"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_command_explains_itself(command):
    ran = call_cli(*command, "--help")
    assert ran.code == 0
    shown = ran.out.decode()
    assert f"Usage: penstock {' '.join(command)}".rstrip() in shown
    if command and command not in (["topic"], ["log"], ["verify"], ["transaction"]):
        assert "--bootstrap" in shown
