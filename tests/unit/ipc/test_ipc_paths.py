"""Where sockets and data lie, which folders are refused, and what a URL means."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from penstock.core.errors import ConfigError
from penstock.ipc import paths


@pytest.fixture
def session(monkeypatch, tmp_path):
    """An environment with a session's runtime folder and a home of its own."""
    for variable in ("PENSTOCK_RUNTIME_DIR", "PENSTOCK_DATA_DIR"):
        monkeypatch.delenv(variable, raising=False)
    folder = tmp_path / "session"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return folder


def mode_of(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def test_the_runtime_folder_is_made_for_this_user_alone(session):
    assert paths.runtime_folder() == session / "penstock"
    assert mode_of(session / "penstock") == 0o700
    assert paths.socket_path("one") == session / "penstock" / "one.sock"


def test_a_chosen_runtime_folder_comes_first(session, monkeypatch, tmp_path):
    chosen = tmp_path / "deep" / "chosen"
    monkeypatch.setenv("PENSTOCK_RUNTIME_DIR", str(chosen))
    assert paths.runtime_folder() == chosen
    assert mode_of(chosen) == 0o700
    monkeypatch.setenv("PENSTOCK_RUNTIME_DIR", "relative")
    with pytest.raises(ConfigError, match=r"PENSTOCK_RUNTIME_DIR.*absolute"):
        paths.runtime_folder()


@pytest.mark.parametrize("value", [None, "", "relative", "{missing}"])
def test_without_a_session_the_runtime_folder_carries_the_uid(session, monkeypatch, value):
    if value is None:
        monkeypatch.delenv("XDG_RUNTIME_DIR")
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", value.format(missing=session / "missing"))
    assert paths.runtime_folder() == Path(f"/tmp/penstock-{os.geteuid()}")
    assert list(session.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="gives folders to another user")
def test_a_session_folder_of_the_user_before_is_not_used(session):
    os.chown(session, 12345, 12345)
    assert paths.runtime_folder() == Path(f"/tmp/penstock-{os.geteuid()}")
    assert not (session / "penstock").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives folders to another user")
def test_a_folder_or_link_of_somebody_else_is_refused(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o700)
    os.chown(theirs, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to uid 12345"):
        paths.private_folder(theirs)
    ours = tmp_path / "ours"
    ours.mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(ours)
    assert paths.private_folder(link) == str(link)
    os.chown(link, 12345, 12345, follow_symlinks=False)
    with pytest.raises(ConfigError, match="belongs to uid 12345"):
        paths.private_folder(link)


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o1777])
def test_a_folder_that_others_can_write_is_refused_with_the_remedy(tmp_path, mode):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(ConfigError, match=rf"{mode:04o}.*chmod go-w {folder}"):
        paths.private_folder(folder)
    folder.chmod(0o755)
    assert paths.private_folder(folder) == str(folder)


def test_what_is_no_folder_is_refused(tmp_path):
    file = tmp_path / "file"
    file.touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for path in (file, file / "below", tmp_path / "dangling"):
        with pytest.raises(ConfigError, match=r"cannot be used|not a folder"):
            paths.private_folder(path)


def test_the_data_folder_is_the_chosen_one_or_the_nodes_own_below_home(
    session, monkeypatch, tmp_path
):
    assert paths.default_data_folder("n1") == tmp_path / "home/.local/share/penstock/n1"
    assert not (tmp_path / "home").exists(), "only named, never made"
    monkeypatch.setenv("PENSTOCK_DATA_DIR", "/srv/queue")
    assert paths.default_data_folder("n1") == Path("/srv/queue")
    monkeypatch.setenv("PENSTOCK_DATA_DIR", "queue")
    with pytest.raises(ConfigError, match=r"PENSTOCK_DATA_DIR.*absolute"):
        paths.default_data_folder("n1")


@pytest.mark.parametrize("name", ["a", "7", "Node-1.eu_west", "a" * 64])
def test_node_names(name, session):
    assert paths.check_node_name(name) == name
    assert paths.parse_url(f"shm://{name}") == paths.Target("shm", name=name)
    assert paths.parse_url(f"shm://{name}").attach_socket().name == f"{name}.sock"


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "-x", "_x", "a/b", "a b", "a\n", "a\0", "ä", "a" * 65]
)
def test_a_name_that_could_leave_the_folder_or_confuse_is_refused(name, session):
    for use in (paths.check_node_name, paths.socket_path, paths.default_data_folder):
        with pytest.raises(ConfigError, match="node name"):
            use(name)


def test_the_data_folder_of_a_named_node_is_noted_beside_its_socket(session, tmp_path):
    assert paths.folder_of("n1") is None
    for folder in (tmp_path / "one", tmp_path / "two"):
        paths.remember_folder("n1", str(folder))
        assert paths.folder_of("n1") == folder
    assert sorted(os.listdir(paths.runtime_folder())) == ["n1.data"]


def test_shm_urls(session):
    assert paths.parse_url("shm://") == paths.Target("shm", name="default")
    assert paths.parse_url("shm://").attach_socket() == session / "penstock" / "default.sock"
    target = paths.parse_url("shm:///var/lib/penstock/")
    assert target == paths.Target("shm", folder=Path("/var/lib/penstock"))
    assert target.attach_socket() == Path("/var/lib/penstock/attach.sock")
    assert paths.socket_in("/var/lib/penstock") == target.attach_socket()
    # Nothing is decoded: a folder may be called like this.
    assert paths.parse_url("shm:///a%20b?c#d").folder == Path("/a%20b?c#d")


def test_tcp_urls():
    target = paths.parse_url("tcp://n1:9640,10.0.0.2:1,[::1]:65535,[fe80::1%eth0]:80,a-b.c_d:5")
    assert target == paths.Target(
        "tcp",
        hosts=(("n1", 9640), ("10.0.0.2", 1), ("::1", 65535), ("fe80::1%eth0", 80), ("a-b.c_d", 5)),
    )
    with pytest.raises(ConfigError, match="no attach socket"):
        target.attach_socket()


@pytest.mark.parametrize(
    "url",
    [
        "", "shm", "shm:", "shm:/", "default", "/var/lib/penstock", "n1:9640", "kafka://n1:9092",
        "SHM://", "http://n1:80", " shm://",
        "shm:///", "shm:////", "shm:///.", "shm:///a/../..", "shm:///a\0b", "shm://a/b", "shm://..",
        "tcp://", "tcp://n1", "tcp://n1:", "tcp://:9640", "tcp://n1:0", "tcp://n1:65536",
        "tcp://n1:99999999", "tcp://n1:-1", "tcp://n1:+1", "tcp://n1:٣", "tcp://n1:9640,",
        "tcp://,n1:9640", "tcp://n1:9640/topic", "tcp://user@n1:9640", "tcp://n 1:9640",
        "tcp://::1:9640", "tcp://[::1]", "tcp://[::1:9640", "tcp://[n1]:9640", "tcp://[]:9640",
        "tcp://[1.2.3.4]:9640", "tcp://-n1:9640", "tcp://n1.:9640", "tcp://n1:9640\n",
        "tcp://" + "a" * 254 + ":1",
    ],
)  # fmt: skip
def test_any_other_url_is_refused_naming_it_and_what_is_allowed(url):
    with pytest.raises(ConfigError) as caught:
        paths.parse_url(url)
    assert repr(url) in str(caught.value)
    for allowed in ("shm://", "shm://NAME", "shm:///ABSOLUTE", "tcp://HOST:PORT"):
        assert allowed in str(caught.value)


def test_several_hosts_have_one_scheme():
    with pytest.raises(ConfigError, match="say tcp:// once"):
        paths.parse_url("tcp://n1:9640,tcp://n2:9640")


def test_the_hosts_of_a_url_are_bounded():
    hosts = [f"n{index}:1" for index in range(paths.HOSTS_MAX + 1)]
    assert len(paths.parse_url("tcp://" + ",".join(hosts[:-1])).hosts) == paths.HOSTS_MAX
    with pytest.raises(ConfigError, match="hosts_max"):
        paths.parse_url("tcp://" + ",".join(hosts))


def test_every_url_of_this_host_has_a_command_that_starts_its_node(session):
    def command(url):
        return paths.serve_command(str(paths.parse_url(url).attach_socket()))

    assert command("shm://") == "penstock serve"
    assert command("shm://billing") == "penstock serve --name billing"
    assert command("shm:///srv/my data") == "penstock serve --data '/srv/my data'"
