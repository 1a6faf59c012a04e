"""Where impls and properties meet for pytest, in a clone: the plugin finds the catalogue of impls beside it by name."""

import os
from collections import Counter

import pytest

pytest_plugins = ["properties.plugin"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--honest-cases", type=int, default=2, metavar="N", help="cases per property of every honest variant (default 2)")
    parser.addoption(
        "--honest-every", type=int, default=6, metavar="N", help="each is put to every N-th property, another one of N than its neighbour"
    )
    parser.addoption("--nightly", action="store_true", help="also what only a longer run can show: the tests marked nightly")


def pytest_configure(config: pytest.Config) -> None:
    """Searches have more cases by night (``nightly.more_by_night``)."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # it would take most of a GPU's memory in every process
    os.environ.pop("ATTNCHECK_NIGHTLY", None)
    if config.getoption("--nightly"):
        os.environ["ATTNCHECK_NIGHTLY"] = "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is marked nightly is not part of the gate."""
    if config.getoption("--nightly"):
        return
    met: Counter[str] = Counter()  # variants so far that are not left out anyhow
    left_out = set()
    for item in items:
        marks, name = list(item.iter_markers("nightly")), item.nodeid.partition("[")[0]
        if any(not mark.kwargs or met[name] % mark.kwargs["but"] for mark in marks):
            left_out.add(item)
        met[name] += all(mark.kwargs for mark in marks)
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))
