"""Every command that a page shows is one that there is, with options and values that it takes: the
real parser reads them all (`documented_commands`)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documented_commands import Shown, complaint, leaves, options_known, shown_in, spans
from guide_blocks import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "deploy").iterdir()),
]  # fmt: skip
OF_OTHERS = {
    **dict.fromkeys(
        ("--build-arg", "--ipc", "--network", "--pid", "--shm-size", "--start-period",
         "--volumes-from"), "docker",
    ),
    "--dist": "pytest-xdist", "--from-beginning": "Kafka", "--no-block": "systemctl",
    "--no-deps": "pip",
    **dict.fromkeys(
        ("--max-async-tasks", "--max-prefetch", "--wait-tasks-timeout"), "taskiq",
    ),
    "--py-files": "spark-submit", "--reload": "faststream",
    "--seed": "make mutants", "--strict": "mypy",
    "--statedb": "celery", "--svg": "tests/import_graph.py",
    "--write": "tests/rules_table.py",
}  # fmt: skip
"""Options that pages name alone, and whose they are."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_parser_takes_every_command_of_a_page(page: Path) -> None:
    wrong = {f"{each.where}: {' '.join(each.words)}": complaint(each) for each in shown_in(page)}
    assert {where: text for where, text in wrong.items() if text} == {}


def test_the_pages_show_many_commands_and_each_that_there_is() -> None:
    shown = [each for page in PAGES for each in shown_in(page)]
    assert sum(each.is_whole for each in shown) > 80
    assert sum(not each.is_whole for each in shown) > 80
    paths = {each.words[:length] for each in shown for length in (1, 2)}
    assert {path for path in leaves() if path not in paths} == set()


def test_options_that_a_page_names_alone_are_there() -> None:
    unknown = {
        option
        for page in PAGES
        for _, span in spans(page)
        for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", span)
        if option not in options_known()
    }
    assert unknown == set(OF_OTHERS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("```console\n$ seq 9 | penstock produce t --nosuch 1 &\n```", "--nosuch"),
        ("```sh\nX=1 penstock nosuch t\n```", "No such command 'nosuch'"),
        ("```console\n$ until penstock topic nosuch; do\n>   penstock topic list\n```", "'nosuch'"),
        ("```console\n$ penstock topic describe\n```", "Missing argument 'TOPIC'"),
        ("```console\n$ penstock top --interval soon\n```", "--interval"),
        ('```console\n$ eval "$(penstock completion nosuch)"\n```', "nosuch"),
        ("```console\n$ penstock bench nosuch\n```", "nosuch"),
        ("Look at `penstock topic describe --nosuch`.", "--nosuch"),
        ("Look at `penstock topic\nnosuch`.", "'nosuch'"),
        ("Look at `penstock top --sort nosuch\\|lag`.", "nosuch"),
    ],
)  # fmt: skip
def test_a_command_that_there_is_not_is_found(tmp_path: Path, text: str, words: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{text}\n")
    assert words in " ".join(complaint(each) for each in shown_in(page))


@pytest.mark.parametrize(
    "text", ["`penstock cluster remove`", "`penstock serve --config`", "`penstock spark ...`"]
)
def test_a_sentence_may_leave_out_what_a_line_may_not(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"By {text}, say.\n")
    [shown] = shown_in(page)
    assert complaint(shown) == ""
    assert complaint(Shown(shown.where, shown.words, is_whole=True))
