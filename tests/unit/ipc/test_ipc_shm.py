"""Named shared memory: room that is really there, names, owners, mappings and what is left."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
import uuid

import numpy as np
import pytest

from penstock.core.errors import AttachRefusedError, ClosedError, ConfigError, ResourceLimitError
from penstock.ipc import shm

SIZE = 64 * 1024


@pytest.fixture
def node():
    """A node's uuid; whatever a test leaves under it is removed, whether it passed or not."""
    node = uuid.uuid4().hex
    yield node
    for name in shm.listing(f"penstock-{node}"):
        shm.unlink(name)


@pytest.fixture
def no_leak():
    """Every descriptor that the test opens is closed in the end."""
    gc.collect()  # what earlier tests left to the collector goes before it is counted
    before = open_descriptors()
    yield
    assert open_descriptors() == before


def open_descriptors():
    """But sockets, which other threads of the process (Spark's) open and close meanwhile."""
    found = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(FileNotFoundError):
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return {fd: what for fd, what in found.items() if not what.startswith("socket:")}


def may_unshare(*namespaces):
    tool = shutil.which("unshare")
    return tool is not None and not subprocess.call([tool, *namespaces, "true"])


def python(code, *args, prefix=(), **kwargs):
    """Run `code` in a process of its own and return what it printed."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*prefix, sys.executable, "-c", code, *map(str, args)],
        env=env, capture_output=True, text=True, timeout=30, **kwargs,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_create_allocates_every_page_for_this_user_only(node, no_leak):
    name = shm.object_name(node, "lane", 3, 0)
    fd = shm.create(name, SIZE)
    found = os.fstat(fd)
    assert found.st_size == SIZE
    assert found.st_blocks * 512 >= SIZE, "not allocated: a full /dev/shm would be SIGBUS later"
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert not os.get_inheritable(fd)
    with shm.Region.of_fd(fd) as region:
        assert bytes(region.bytes) == bytes(SIZE)


def test_a_taken_name_is_refused_and_its_memory_untouched(node, no_leak):
    name = shm.object_name(node, "state")
    with shm.Region.of_fd(shm.create(name, SIZE)) as region:
        region.q[0] = 7
        with pytest.raises(FileExistsError):
            shm.create(name, 2 * SIZE)
        assert region.q[0] == 7
        with shm.Region.of_fd(shm.open_existing(name, writable=True)) as again:
            assert (again.size, again.q[0]) == (SIZE, 7)


def test_a_full_dev_shm_is_an_error_that_tells_the_sizes_and_leaves_nothing(node, no_leak):
    wanted = 1 << 50
    with pytest.raises(ResourceLimitError) as caught:
        shm.create(shm.object_name(node, "lane"), wanted)
    message = str(caught.value)
    assert message.startswith("/dev/shm has no room")
    assert f"{wanted} bytes wanted" in message
    free = re.search(r"(\d+) free", message)
    assert free is not None
    assert 0 < int(free[1]) < wanted
    assert "remount" in message
    assert shm.listing(f"penstock-{node}") == []


@pytest.mark.skipif(not may_unshare("--mount"), reason="mounts a small /dev/shm")
def test_a_dev_shm_that_is_really_full_leaves_what_fitted_intact(node):
    code = """
import sys
from penstock.core.errors import ResourceLimitError
from penstock.ipc import shm
region = shm.Region.of_fd(shm.create("/penstock-fits", 600 * 1024))
try:
    shm.create("/penstock-too-much", 600 * 1024)
except ResourceLimitError as error:
    print(error)
region.bytes[:] = b"x" * region.size  # every page is there: no SIGBUS
print(shm.listing("penstock-"))
"""
    mount = ["unshare", "--mount", "sh", "-c",
             'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"', "sh"]  # fmt: skip
    message, listed = python(code, prefix=mount).splitlines()
    assert "614400 bytes wanted, 434176 free" in message
    assert listed == "['/penstock-fits']"


def test_the_file_size_limit_is_named_and_leaves_nothing(node):
    name = shm.object_name(node, "lane")
    code = """
import resource, sys
from penstock.core.errors import ResourceLimitError
from penstock.ipc import shm
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    shm.create(sys.argv[1], 65536)
except ResourceLimitError as error:
    print(error)
"""
    assert "RLIMIT_FSIZE is 4096" in python(code, name)
    assert shm.listing(f"penstock-{node}") == []


def test_running_out_of_descriptors_names_the_limit_and_leaves_nothing(node):
    name = shm.object_name(node, "lane")
    code = """
import os, resource, sys
from penstock.core.errors import ResourceLimitError
from penstock.ipc import shm
kept = shm.create(sys.argv[1] + "-kept", 4096)
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (kept + 1, hard))
def attempt(what):
    try:
        what()
    except ResourceLimitError as error:
        print(f"RLIMIT_NOFILE is {kept + 1} " in str(error))
    else:
        print("went through")
attempt(lambda: shm.create(sys.argv[1] + "-over", 4096))
attempt(lambda: shm.open_existing(sys.argv[1] + "-kept", writable=True))
attempt(lambda: shm.listing("penstock-"))
if sys.version_info < (3, 13):  # later ones map without a descriptor of their own
    attempt(lambda: shm.map_fd(kept))
"""
    assert set(python(code, name).splitlines()) == {"True"}
    assert shm.listing(f"penstock-{node}") == [f"{name}-kept"]


def test_a_missing_object_is_file_not_found(node):
    with pytest.raises(FileNotFoundError):
        shm.open_existing(shm.object_name(node, "lane"), writable=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives an object to another user")
def test_an_object_of_another_user_is_refused(node, no_leak):
    name = shm.object_name(node, "lane")
    os.close(shm.create(name, SIZE))
    os.chown(f"/dev/shm{name}", 12345, 12345)
    try:
        with pytest.raises(AttachRefusedError, match=r"made by uid 12345.* remove it"):
            shm.open_existing(name, writable=False)
        assert shm.listing(name) == [], "and counts as nobody's"
    finally:
        shm.unlink(name)


@pytest.mark.parametrize("make", [os.symlink, None, "folder"], ids=["link", "pipe", "folder"])
def test_what_is_no_object_under_a_name_is_named_and_refused(node, no_leak, make, tmp_path):
    name = shm.object_name(node, "state")
    path = f"/dev/shm{name}"
    if make is os.symlink:
        os.symlink(tmp_path / "elsewhere", path)
    elif make:
        os.mkdir(path)
    else:
        os.mkfifo(path)
    try:
        for writable in (False, True):
            with pytest.raises(AttachRefusedError, match=re.escape(f"{path} is ")):
                shm.open_existing(name, writable=writable)
        assert shm.listing(name) == []
    finally:
        (os.rmdir if make == "folder" else os.unlink)(path)


def test_a_read_only_descriptor_cannot_be_written_through(node, no_leak):
    name = shm.object_name(node, "state")
    os.close(shm.create(name, SIZE))
    fd = shm.open_existing(name, writable=False)
    with pytest.raises(PermissionError):
        shm.map_fd(fd, writable=True)
    with shm.Region.of_fd(fd, writable=False) as region, pytest.raises(TypeError):
        region.q[0] = 1


def test_both_processes_see_the_words_and_the_name_outlives_who_only_attached(node, no_leak):
    name = shm.object_name(node, "lane")
    with shm.Region.of_fd(shm.create(name, SIZE)) as region:
        region.q[1] = 2**64 - 1
        code = """
import sys
from penstock.ipc import shm
region = shm.Region.of_fd(shm.open_existing(sys.argv[1], writable=True))
region.q[2] = region.q[1] - 1
"""
        python(code, name)
        assert region.q[2] == 2**64 - 2
        assert shm.listing(name) == [name]


def test_unlink_tells_whether_it_was_there_and_mappings_stay_valid(node, no_leak):
    name = shm.object_name(node, "lane")
    with shm.Region.of_fd(shm.create(name, SIZE)) as region:
        assert shm.unlink(name) is True
        assert shm.unlink(name) is False
        region.bytes[-1] = 9
        assert region.bytes[SIZE - 1] == 9


def test_listing_gives_the_names_that_unlink_takes(node):
    names = [shm.object_name(node, "lane", index) for index in (2, 0, 1)]
    for name in [*names, shm.object_name(node, "state")]:
        os.close(shm.create(name, 4096))
    assert shm.listing(shm.object_name(node, "lane")) == sorted(names)
    assert shm.listing(f"penstock-{node}-lane-2") == [names[0]]


def test_an_object_name_is_bounded_and_cannot_leave_its_folder():
    node = "0123456789abcdef" * 2
    assert shm.object_name(node, "lane", 7, "a.b_c") == f"/penstock-{node}-lane-7-a.b_c"
    room = shm.NAME_MAX - len(f"penstock-{node}-lane-")
    fits = shm.object_name(node, "lane", "x" * room)
    os.close(shm.create(fits, 4096))
    assert shm.unlink(fits)
    with pytest.raises(ConfigError, match="NAME_MAX 255"):
        shm.object_name(node, "lane", "x" * (room + 1))


@pytest.mark.parametrize("part", ["", "a/b", "../x", "a b", "\0", "é", "a\n", "-a", "a--b"])
def test_a_part_that_would_make_an_odd_name_is_refused(part):
    with pytest.raises(ConfigError, match="cannot be part"):
        shm.object_name("0" * 32, "lane", part)


@pytest.mark.parametrize("node", ["", "0" * 31, "0" * 33, "G" * 32, "A" * 32, "0" * 32 + "\n"])
def test_a_node_uuid_that_is_none_is_refused(node):
    with pytest.raises(ConfigError, match="uuid"):
        shm.object_name(node, "lane")


def test_an_empty_object_is_refused(node):
    with pytest.raises(ConfigError, match="size above 0"):
        shm.create(shm.object_name(node, "empty"), 0)
    assert shm.listing(f"penstock-{node}") == []


def test_a_closed_region_refuses_every_use(node, no_leak):
    region = shm.Region.of_fd(shm.create(shm.object_name(node, "lane"), SIZE))
    kept_words = region.q
    assert region.close() is True
    assert region.close() is True
    for use in (lambda: region.q[0], lambda: region.bytes[0], lambda: kept_words[0]):
        with pytest.raises(ValueError, match="released"):
            use()
    with pytest.raises(ClosedError):
        _ = region.mapping


@pytest.mark.parametrize(
    ("hold", "read"),
    [
        (lambda region: region.bytes[8:16], bytes),
        (lambda region: np.frombuffer(region.bytes, dtype="u1")[8:16], bytes),
        (lambda region: struct.iter_unpack("8s", region.bytes), lambda held: list(held)[1][0]),
        (lambda region: struct.iter_unpack("8s", region.q), lambda held: list(held)[1][0]),
    ],
    ids=["slice", "array", "user of the bytes", "user of the words"],
)
def test_closing_a_region_in_use_leaves_its_users_unharmed(node, no_leak, hold, read):
    region = shm.Region.of_fd(shm.create(shm.object_name(node, "lane"), SIZE))
    region.q[1] = 0x0101010101010101
    held = hold(region)
    assert region.close() is False
    assert region.closed
    for use in (lambda: region.q[0], lambda: region.bytes[0]):
        with pytest.raises(ValueError, match="released"):
            use()
    assert read(held) == b"\x01" * 8
