"""Where impls and properties meet for pytest, in a clone: the plugin finds the catalogue of impls beside it by name."""

import pytest

pytest_plugins = ["properties.plugin"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--honest-cases", type=int, default=6, metavar="N", help="cases per property of every honest variant (default 6)")
