"""The overview's one sentence."""

from __future__ import annotations

from penstock.console.pages.overview import Figures, Trouble, verdict


def _noted(number: int) -> Trouble:
    return Trouble(f"group g{number}", "lag 7", "start its consumers", is_wrong=False)


def test_the_sentence_names_what_is_no_fault_and_to_look_at() -> None:
    figures = Figures(at=0.0, troubles=[_noted(1)], dead_letters={"mails.dlq": 2})
    assert verdict(figures) == ("All is well. To look at: group g1, 2 dead letters.", True)
    figures = Figures(at=0.0, troubles=[_noted(number) for number in range(5)])
    assert verdict(figures) == (
        "All is well. To look at: group g0, group g1, group g2, 2 more.",
        True,
    )
    assert verdict(Figures(at=0.0)) == ("All is well.", True)


def test_a_fault_comes_before_what_is_none() -> None:
    fault = Trouble("disk", "the disk is full", "give it room")
    figures = Figures(at=0.0, troubles=[_noted(1), fault], dead_letters={"mails.dlq": 2})
    assert verdict(figures) == ("Not well: disk: the disk is full.", False)
