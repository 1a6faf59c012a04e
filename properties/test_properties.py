"""Every property of every target, and every known deviation, as tests."""

from collections.abc import Callable


def test_property(attention_check: Callable[[], None]) -> None:
    attention_check()


def test_known_deviation(known_deviation: Callable[[], None]) -> None:
    known_deviation()
