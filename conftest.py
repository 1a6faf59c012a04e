"""Where impls and properties meet for pytest, in a clone: the plugin finds the catalogue of impls beside it by name."""

import os

import pytest

pytest_plugins = ["properties.plugin"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--honest-cases", type=int, default=2, metavar="N", help="cases per property of every honest variant (default 2)")
    parser.addoption(
        "--honest-every", type=int, default=3, metavar="N", help="each is put to every N-th property, another one of N than its neighbour"
    )
    parser.addoption("--nightly", action="store_true", help="also what only a longer run can show: the tests marked nightly")


def pytest_xdist_auto_num_workers() -> int:
    """Half as many again as there are cores: whoever has started a process waits for it."""
    return (os.cpu_count() or 1) * 3 // 2


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is marked nightly is not part of the gate."""
    if config.getoption("--nightly"):
        return
    left_out = [item for item in items if item.get_closest_marker("nightly")]
    items[:] = [item for item in items if item not in set(left_out)]
    config.hook.pytest_deselected(items=left_out)
