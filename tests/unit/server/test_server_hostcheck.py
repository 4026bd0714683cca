"""The warning about a system that removes a user's shared memory at logout (rule 5)."""

from __future__ import annotations

import pytest

from penstock.server.node.host_check import remove_ipc_warning


@pytest.fixture
def root(tmp_path):
    (tmp_path / "run/systemd/sessions").mkdir(parents=True)
    (tmp_path / "etc/systemd/logind.conf.d").mkdir(parents=True)
    return tmp_path


@pytest.mark.rule(5)
def test_rule_5_an_ordinary_user_under_logind_is_warned(root):
    warning = remove_ipc_warning(str(root), uid=1000)
    assert warning is not None
    assert "RemoveIPC=no" in warning


@pytest.mark.rule(5)
@pytest.mark.parametrize("uid", [0, 999])
def test_rule_5_system_users_keep_their_memory(root, uid):
    assert remove_ipc_warning(str(root), uid=uid) is None


@pytest.mark.rule(5)
def test_rule_5_no_logind_no_warning(tmp_path):
    assert remove_ipc_warning(str(tmp_path), uid=1000) is None


@pytest.mark.rule(5)
@pytest.mark.parametrize(
    ("main", "extra", "warned"),
    [
        ("[Login]\nRemoveIPC=no\n", None, False),
        ("[Login]\n#RemoveIPC=no\n", None, True),
        ("RemoveIPC = No", None, False),
        ("RemoveIPC=no", "RemoveIPC=yes", True),
        ("RemoveIPC=yes", "RemoveIPC=no", False),
        ("RemoveIPC=no\nRemoveIPC=yes\n", None, True),
    ],
)
def test_rule_5_the_last_setting_counts(root, main, extra, warned):
    (root / "etc/systemd/logind.conf").write_text(main)
    if extra is not None:
        (root / "etc/systemd/logind.conf.d/10-ours.conf").write_text(extra)
    assert (remove_ipc_warning(str(root), uid=1000) is not None) == warned
