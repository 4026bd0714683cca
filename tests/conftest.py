"""What every test shares: the seed of the day, how hypothesis behaves on a machine that is
busy with other work, and the plugin of this checkout."""

from __future__ import annotations

import gc
import os

import fresh_fixtures
import pytest
import serial_scheduler
import warm_processes
from hypothesis import settings
from ignored_signals import catch_ignored
from seeds import DAY, seed_of_day
from xdist.remote import Producer

from penstock import pytest_plugin

# No deadline: a shared machine is slow at random. A failure prints the blob that reproduces it.
settings.register_profile("penstock", deadline=None, print_blob=True)
settings.load_profile("penstock")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--transport",
        choices=("default", "shm", "tcp", "both"),
        default=os.environ.get("PENSTOCK_TEST_TRANSPORT") or "default",
        help="how clients reach the nodes of end-to-end tests: all by shm, all by tcp (but those "
        "that are local by nature), both, or all by shm and those marked over_tcp by tcp too",
    )


def pytest_configure(config: pytest.Config) -> None:
    """One day for all processes of a run, hypothesis included, also past midnight. The plugin is
    here already where the checkout is installed."""
    catch_ignored()
    warm_processes.warm()
    os.environ[DAY] = str(seed_of_day())
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = seed_of_day()
    if config.getoption("--transport") == "tcp":  # end-to-end tests choose one by one
        os.environ.update(PENSTOCK_TEST_TRANSPORT="tcp", PENSTOCK_TRANSPORT="tcp")
    config.addinivalue_line("markers", "over_tcp(yes=True): run over tcp too in the default suite")
    config.addinivalue_line("markers", "local(reason): only makes sense on the node's own host")
    config.pluginmanager.register(fresh_fixtures)
    if not config.pluginmanager.hasplugin("penstock"):
        config.pluginmanager.register(pytest_plugin, "penstock")


def pytest_report_header() -> str:
    return f"seed of the day: {DAY}={seed_of_day()} repeats its random tests"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = serial_scheduler.in_stages(items)


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end, so the garbage collector need not look at them: each
    look took 0.1 s, and hundreds of tests ask for one."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """What was left out is freed like the rest, or libraries complain when Python ends."""
    gc.unfreeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return serial_scheduler.workers_of(len(os.sched_getaffinity(0)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> serial_scheduler.TwoStages:
    return serial_scheduler.TwoStages(config, log)


@pytest.fixture(autouse=True, scope="module")
def _collected() -> None:
    """What a module left to the garbage collector must not be freed while the next one counts
    descriptors."""
    gc.collect()
