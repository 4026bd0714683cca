"""`penstock completion`: what a shell offers behind a half-written line, node or no node."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess

import pytest
from cli_runner import COMMAND, call_cli, environment

from penstock import TopicConfig
from penstock.testing.embedded import EmbeddedNode


@pytest.fixture(scope="module")
def node():
    with EmbeddedNode(writers=1) as running:
        with running.connect() as client, client.admin() as admin:
            for name in ("orders", "order-lines", "clicks"):
                admin.create_topic(name, TopicConfig(partitions=2))
        yield running


def offered(line, url="shm:///nowhere", shell="bash"):
    """(mode, words) for a line up to the cursor."""
    words = [line] if shell == "bash" else line.split(" ")[1:]
    ran = call_cli("__complete", shell, *words, url=url)
    assert (ran.code, ran.err) == (0, "")
    mode, *found = ran.lines
    return mode, [text.partition("\t")[0] for text in found]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("penstock to", ["top", "topic"]),
        ("penstock topic de", ["describe", "delete"]),
        ("penstock dlq re", ["replay"]),
        ("penstock dlq replay --max", ["--max-replays"]),
        ("penstock -q -b shm://x topic des", ["describe"]),
        ("penstock topic describe --sam", ["--sample"]),
        ("penstock topic describe --format ", ["text", "json", "wide"]),
        ("penstock produce t --acks ", ["0", "1", "all"]),
        ("penstock completion ", ["bash", "zsh", "fish", "install"]),
        ("penstock completion install ", ["bash", "zsh", "fish"]),
        ("penstock top --interval ", []),
        ("penstock nosuch ", []),
        ("penstock topic nosuch ", []),
    ],
)
def test_commands_options_and_choices(shell, line, words):
    mode, found = offered(line, shell=shell)
    assert mode == "words"
    assert found == words


def test_a_value_behind_an_equals_sign_is_what_each_shell_replaces():
    assert offered("penstock top --sort=b") == ("words", ["bytes"])
    assert offered("penstock top --sort=b", shell="fish") == ("words", ["--sort=bytes"])


@pytest.mark.parametrize(
    "line", ["penstock log dump ", "penstock serve --config ", "penstock serve --data /t"]
)
def test_places_of_files_are_left_to_the_shell(line):
    assert offered(line) == ("files", [])


def test_topics_of_the_node_that_the_line_means(node):
    every = ["clicks", "order-lines", "orders"]
    assert offered("penstock consume ", node.url) == ("words", every)
    assert offered("penstock dlq replay ord", node.url)[1] == ["order-lines", "orders"]
    assert offered("penstock topic delete orders ord", node.url)[1] == ["order-lines", "orders"]
    assert offered("penstock top --topic c", node.url)[1] == ["clicks"]
    for options in (f"-b {node.url} ", f"--bootstrap={node.url} "):
        assert offered(f"penstock {options}topic describe ", "shm:///nowhere")[1] == every
        assert offered(f"penstock topic describe {options}", "shm:///nowhere")[1] == every


def test_a_stopped_node_is_not_waited_for(node):
    os.kill(node.pid, signal.SIGSTOP)
    try:
        assert offered("penstock consume cl", node.url) == ("words", ["clicks"])
    finally:
        os.kill(node.pid, signal.SIGCONT)


@pytest.mark.parametrize("url", ["shm:///nowhere", "tcp://n1:1", "nonsense"])
def test_without_a_node_it_is_silent(url):
    assert offered("penstock consume ", url) == ("words", [])


@pytest.mark.parametrize("line", ["", "penstock", "penstock 'topic", 'penstock "', "penstock \\"])
def test_odd_lines_do_no_harm(line):
    mode, _ = offered(line)
    assert mode == "words"


def test_the_names_of_nodes_complete_urls(tmp_path, monkeypatch):
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    for name in ("river", "lake"):
        (runtime / f"{name}.sock").touch()
    command = [*COMMAND, "__complete", "fish", "top", "-b", "shm://r"]
    done = subprocess.run(
        command, env=environment(env={"PENSTOCK_RUNTIME_DIR": str(runtime)}), capture_output=True
    )
    assert done.stdout == b"words\nshm://river\n"


def test_bash_offers_what_the_script_asks_for(node, tmp_path):
    program = tmp_path / "penstock"
    program.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    program.chmod(0o755)
    script = """
    eval "$(penstock completion bash)"
    complete -p penstock
    COMP_LINE="penstock topic describe ord" COMP_POINT=27
    COMP_WORDS=(penstock topic describe ord) COMP_CWORD=3
    _penstock; printf '%s\\n' "${COMPREPLY[@]}"
    """
    places = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environment(node.url, places), capture_output=True
    )
    assert done.stderr == b""
    assert done.stdout.decode().splitlines() == [
        "complete -F _penstock penstock", "order-lines", "orders",
    ]  # fmt: skip


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_scripts_are_good_syntax(shell, tmp_path):
    script = call_cli("completion", shell)
    assert script.code == 0
    assert b"__complete " + shell.encode() in script.out
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = tmp_path / "script"
    path.write_bytes(script.out)
    subprocess.run([shell, "-n", path], check=True)


def test_a_shell_without_a_script_is_a_usage_error():
    assert call_cli("completion", "powershell").code == 2


@pytest.mark.parametrize(
    ("shell", "place", "more"),
    [
        ("bash", ".local/share/bash-completion/completions/penstock", "bash-completion"),
        ("zsh", ".local/share/zsh/site-functions/_penstock", "fpath=("),
        ("fish", ".config/fish/completions/penstock.fish", "a new shell has it"),
    ],
)
def test_a_script_is_installed_for_the_user_and_kept_up_to_date(shell, place, more, tmp_path):
    env = {"HOME": str(tmp_path), "SHELL": f"/usr/bin/{shell}", "XDG_DATA_HOME": "",
           "XDG_CONFIG_HOME": "", "BASH_COMPLETION_USER_DIR": ""}  # fmt: skip
    path = tmp_path / place
    first = call_cli("completion", "install", env=env)
    assert (first.code, first.out) == (0, b"")
    said, step = first.err.splitlines()
    assert (said, more in step) == (f"{path} is written", True)
    assert path.read_bytes() == call_cli("completion", shell).out
    again = call_cli("completion", "install", shell, env={**env, "SHELL": "/bin/sh"})
    assert again.err.splitlines()[0] == f"{path} is there already"
    path.write_text(f"# Completion of penstock for {shell}, of an older release")
    renewed = call_cli("completion", "install", env=env)
    assert renewed.err.splitlines()[0] == f"{path} is renewed"
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    path.write_text("of somebody else")
    refused = call_cli("completion", "install", env=env)
    assert (refused.code, "is not ours: move it away first" in refused.err) == (2, True)
    assert path.read_text() == "of somebody else"


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        (("install",), {"SHELL": "/bin/sh"}, "$SHELL is sh: say which one of bash, zsh, fish"),
        (("install",), {"SHELL": ""}, "$SHELL is not set"),
        (("install", "csh"), {}, "csh"),
        (("bash", "zsh"), {}, "say `penstock completion bash`"),
        (("install", "fish"), {"XDG_CONFIG_HOME": "/dev/null/x"}, "cannot write"),
    ],
    ids=str,
)
def test_what_cannot_be_installed_is_wrong_usage(words, env, said):
    ran = call_cli("completion", *words, env=env)
    assert (ran.code, said in ran.err) == (2, True), ran.err


def test_a_script_that_cannot_be_written_whole_leaves_nothing_behind(tmp_path):
    env = {"HOME": str(tmp_path), "BASH_COMPLETION_USER_DIR": str(tmp_path)}
    ran = subprocess.run(
        ["bash", "-c", 'ulimit -f 0; exec "$@"', "bash", *COMMAND, "completion", "install", "bash"],
        env=environment("shm:///nowhere", env), capture_output=True, text=True,
    )  # fmt: skip
    assert (ran.returncode, "File too large" in ran.stderr) == (2, True), ran.stderr
    assert list((tmp_path / "completions").iterdir()) == []


def test_bash_loads_what_was_installed(tmp_path):
    program = tmp_path / "penstock"
    program.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    program.chmod(0o755)
    env = {"HOME": str(tmp_path), "XDG_DATA_HOME": "", "BASH_COMPLETION_USER_DIR": ""}
    call_cli("completion", "install", "bash", env=env)
    script = """
    . ~/.local/share/bash-completion/completions/penstock
    COMP_LINE="penstock client " COMP_POINT=16 COMP_WORDS=(penstock client '') COMP_CWORD=2
    _penstock; printf '%s\\n' "${COMPREPLY[@]}"
    """
    places = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **env}
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=environment("shm:///nowhere", places),
        capture_output=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (b"list\nkick\n", b"")
