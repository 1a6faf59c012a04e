"""What ends a run early: Ctrl-C (what was found so far is told, nothing is left running), a reader that has gone, the time."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from nightly import some_by_night

from impls import numpy_matmul
from properties import catalogue
from properties.__main__ import entry
from properties.engine.doors import cli
from properties.engine.search import interrupt, run, search
from properties.engine.search.probe import make_target

ROOT = Path(__file__).parents[2]
KERNEL = """
import itertools
import time
from pathlib import Path

calls = itertools.count()

def attention(q, k, v):
    if next(calls) == 400:  # more than are asked before the search
        Path("searched").touch()
    if v.shape[3] == 2:
        return 2 * v[:, :, :1] + 0 * q[..., :1]
    time.sleep(0.005)
    return v[:, :, :1] + 0 * q[..., :1]

attention.supports = {"framework": "numpy", "dtypes": ["float64"], "zero_sizes": False}
"""


def heed() -> None:
    """What runs in the background has been told to ignore interruptions."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def usual() -> Iterator[None]:
    """Interruptions raise, as in the foreground."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interruption_that_is_lost_is_remembered(usual: None) -> None:
    with interrupt.listening():
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupt.check()
    interrupt.check()


def test_one_interruption_may_come_twice(usual: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the terminal, and from the process that started this one; a later one is another."""
    now = [100.0]
    monkeypatch.setattr(interrupt, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with suppress(KeyboardInterrupt), interrupt.listening():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        now[0] += 0.9
        signal.raise_signal(signal.SIGINT)
        now[0] += 0.2
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with interrupt.listening(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_error_that_came_of_an_interruption_is_no_mistake(
    usual: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lose(options: Any) -> int:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        except KeyboardInterrupt:
            raise RuntimeError("what was cleaned up was not there yet") from None
        return 0

    monkeypatch.setattr(cli, "run", lose)
    assert cli.main(["numpy_matmul.attention", "--cases", "1"]) == 130
    assert capsys.readouterr().err.startswith("attncheck: interrupted")
    monkeypatch.setattr(cli, "run", lambda options: 1 // 0)
    assert cli.main(["numpy_matmul.attention", "--cases", "1"]) == 2 and "this is a mistake of attncheck" in capsys.readouterr().err


def test_in_the_background_sigterm_is_heard(usual: None) -> None:
    """Where a shell has told to ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with interrupt.listening(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_elsewhere_than_in_the_main_thread_no_handler_is_set(usual: None) -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def run() -> None:
        with interrupt.listening():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [before]


def test_the_handlers_are_those_of_before_afterwards(usual: None) -> None:
    """Of SIGTERM, too; who has a handler of his own for it keeps it meanwhile."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        for own in (signal.SIG_DFL, lambda *_: None):
            signal.signal(signal.SIGTERM, own)
            with interrupt.listening():
                assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
                assert (signal.getsignal(signal.SIGTERM) is own) is (own is not signal.SIG_DFL)
                assert sys.unraisablehook is not sys.__unraisablehook__ or own is not signal.SIG_DFL
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler and signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_status_says_which_signal_ended_a_run(usual: None, number: signal.Signals) -> None:
    """During the run and after it; a run that nobody ended leaves that of Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with suppress(KeyboardInterrupt), interrupt.listening():
            try:
                signal.raise_signal(number)
            finally:
                assert interrupt.status() == 128 + number
        assert interrupt.status() == 128 + number
        interrupt.check()
        with interrupt.listening():
            assert interrupt.status() == 128 + number
            interrupt.check()
        assert interrupt.status() == 130
    finally:
        signal.signal(signal.SIGTERM, before)


def test_before_any_run_the_status_is_that_of_control_c() -> None:
    asked = "import os; from properties.engine.search import interrupt; interrupt.check(); os._exit(interrupt.status())"
    assert subprocess.run([sys.executable, "-c", asked], cwd=ROOT).returncode == 130


class Interrupts:
    """Of the import of a module."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "properties.engine.doors.cli":
            raise KeyboardInterrupt


def test_while_modules_are_imported_it_is_told_in_a_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delitem(sys.modules, "properties.engine.doors.cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupts(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        entry()
    assert ended.value.code == 130 and capsys.readouterr().err == "attncheck: interrupted\n"


def test_what_python_drops_is_not_printed(usual: None, capfd: pytest.CaptureFixture[str]) -> None:
    """An interruption in a callback of the collector: the next case raises it. Anything else that is dropped there is printed as ever."""
    wrong: list[BaseException] = [KeyboardInterrupt(), ValueError("of somebody")]

    def callback(phase: str, _: object) -> None:
        if phase == "start" and wrong:
            if isinstance(wrong.pop(0), KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            raise ValueError("of somebody")

    gc.disable()  # no collection but those that are asked for
    gc.callbacks.append(callback)
    try:
        with interrupt.listening():
            gc.collect()
            with pytest.raises(KeyboardInterrupt):
                interrupt.check()
            assert capfd.readouterr().err == ""
            gc.collect()
            assert "ValueError: of somebody" in capfd.readouterr().err
    finally:
        gc.callbacks.remove(callback)
        gc.enable()


def test_where_interruptions_are_ignored_they_stay_so(usual: None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupt.listening():
        signal.raise_signal(signal.SIGINT)
        interrupt.check()


@pytest.mark.parametrize(
    "workers, number",
    some_by_night(
        [((), signal.SIGINT), ((), None), (("-n", "2"), signal.SIGINT), (("-n", "2"), signal.SIGTERM)],
        [(("-n", "2"), signal.SIGTERM)],
    ),
    ids=["one process", "one process, as by kill", "workers", "workers, SIGTERM"],
)
def test_an_interrupted_run_tells_what_it_found(tmp_path: Path, workers: tuple[str, ...], number: signal.Signals | None) -> None:
    """Ctrl-C goes to every process of a terminal, SIGTERM, or None: SIGINT, to the one that was started; nobody is left behind."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    command = [sys.executable, "-m", "properties", "kernel.py:attention", "--property", "values", "--cases", "100000", *workers]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=heed,
    ) as run:
        began = time.monotonic()
        while not (tmp_path / "searched").exists() and time.monotonic() - began < 120:
            time.sleep(0.1)
        (os.killpg if number is signal.SIGINT else os.kill)(run.pid, number or signal.SIGINT)
        try:
            out, err = run.communicate(timeout=60)  # ends when nobody holds the pipes any more
        finally:
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 128 + (number or signal.SIGINT) and "attncheck: interrupted" in err and "Traceback" not in err
    assert ("INTERRUPTED" in out or "REFUTED" in out) and "NOTHING FOUND" not in out


def test_a_reader_that_has_gone_is_no_error(tmp_path: Path) -> None:
    """As in "attncheck list | head": the status of a process that SIGPIPE ended, and not a word."""
    with subprocess.Popen(
        [sys.executable, "-m", "properties", "list"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.wait(timeout=120) == 141
        assert process.stderr.read() == b""


def test_no_slow_property_takes_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three seconds, by a clock that only the attention moves, for six properties: the last one has its cases, too."""
    clock = [0.0]

    def slow(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        clock[0] += 0.05
        return numpy_matmul.attention(q, k, v)

    for module in (run, search):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    target = make_target("mine", slow, {"framework": "numpy"})
    report = run.verify_target(target, catalogue.select(("values",)), search.Plan(), seconds=3)
    assert len(report.outcomes) == 6
    assert all(2 <= outcome.cases <= 12 for outcome in report.outcomes.values())  # half a second each, and what others left


def test_the_second_interruption_that_is_the_first_interrupts_no_cleaning_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal sends it to every process of the run, and the one that started it sends it on: the second comes when the search has ended."""
    clock = [100.0]
    monkeypatch.setattr(interrupt, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), interrupt.listening():
            signal.raise_signal(signal.SIGINT)
        clock[0] += interrupt.SAME / 2
        signal.raise_signal(signal.SIGINT)
        clock[0] += interrupt.SAME
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        with interrupt.listening():
            pass
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, usual)


def test_nor_does_it_while_the_handlers_are_put_back(usual: None, monkeypatch: pytest.MonkeyPatch) -> None:
    put = signal.signal

    def between(number: signal.Signals, handler: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        before = put(number, handler)
        signal.raise_signal(signal.SIGINT)
        return before

    with suppress(KeyboardInterrupt), interrupt.listening():
        monkeypatch.setattr(signal, "signal", between)
        signal.raise_signal(signal.SIGINT)
    monkeypatch.undo()
    assert interrupt.status() == 130 and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
