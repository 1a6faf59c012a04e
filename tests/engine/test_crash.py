"""A kernel that kills the process is refuted like any other: the smallest case, a replay line, exit status 1."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pytest
from nightly import some_by_night

from properties.attention.case import Case
from properties.catalogue import PROPERTIES
from properties.engine.contained import link, watch
from properties.engine.core import crash
from properties.engine.core.attempt import try_case
from properties.engine.core.crash import isolated, killed_by
from properties.engine.search.probe import make_target

ROOT = Path(__file__).parents[2]
KERNEL = """
import ctypes
import numpy as np

def attention(q, k, v):
    if {condition}:
        ctypes.string_at(0)
    scores = q @ k.swapaxes(-1, -2) / max(q.shape[-1], 1) ** 0.5
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-1e300))
    return powers / np.maximum(powers.sum(axis=-1, keepdims=True), 1e-300) @ v

attention.supports = {{"framework": "numpy", "dtypes": ["float64"]}}
"""
WHERE, WORKERS = ((), ("--in-process",)), ((), ("-n", "2"))
CRASHING, FIRST, RIGHT = "q.shape[2] > 2 and k.shape[2] == 2", "True", "False"


def attncheck(folder: Path, condition: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "kernel.py").write_text(KERNEL.format(condition=condition))
    command = [sys.executable, "-m", "properties", "kernel.py:attention", "--property", "constant_values_are_returned", *options]
    return subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True, check=False)


def test_where_processes_can_be_forked_every_case_has_one_of_its_own() -> None:
    mine = os.getpid()
    with isolated():
        assert (
            killed_by(lambda: os.getpid() != mine and os.kill(os.getpid(), signal.SIGKILL))
            == "killed the process (SIGKILL)" * crash.CAN_FORK
        )
        assert killed_by(lambda: os.getpid() != mine and os._exit(3)) == "ended the process (exit status 3)" * crash.CAN_FORK
        with isolated(False):
            assert killed_by(lambda: 1 / 0) == ""  # it is not even called
    assert (sys.platform == "linux") is crash.CAN_FORK


@pytest.mark.nightly
@pytest.mark.parametrize("where, workers", some_by_night(product(WHERE, WORKERS), [(WHERE[0], WORKERS[1])]))
def test_the_smallest_case_is_found(tmp_path: Path, workers: tuple[str, ...], where: tuple[str, ...]) -> None:
    ran = attncheck(tmp_path, CRASHING, *workers, *where)
    assert ran.returncode == 1, ran.stderr
    assert ("starting again, every case in a process of its own first" in ran.stderr) == bool(where)
    assert "the call killed the process (SIGSEGV)" in ran.stdout
    assert '--case "Case(queries=3, keys=2)"' in ran.stdout
    assert "matters   queries=3, keys=2 " in ran.stdout and "reading" not in ran.stdout


def test_the_replay_line_replays_and_sees_the_repair(tmp_path: Path) -> None:
    replay = ("--case", "Case(queries=3, keys=2)")
    ran = attncheck(tmp_path, CRASHING, *replay)
    assert ran.returncode == 1 and "killed the process (SIGSEGV)" in ran.stdout
    ran = attncheck(tmp_path, RIGHT, *replay)
    assert ran.returncode == 0 and ran.stderr == ""
    ran = attncheck(tmp_path, RIGHT, "--isolate", "--in-process", "--cases", "20")
    assert ran.returncode == 0 and "20 cases" in ran.stdout


def test_a_crash_on_the_first_call_cannot_be_run(tmp_path: Path) -> None:
    ran = attncheck(tmp_path, FIRST, "--in-process")
    assert ran.returncode == 2 and ran.stderr.endswith("attncheck: the target killed the process (SIGSEGV)\n")
    ran = attncheck(tmp_path, FIRST)
    assert ran.returncode == 2 and ran.stderr.endswith("on float64 it killed the process (SIGSEGV)\n")


def test_isolation_changes_nothing_else() -> None:
    """A wrong answer and an exception are told as without it."""

    def raising(q, k, v):  # type: ignore[no-untyped-def]
        if q.shape[2] == 2:
            raise ValueError("two")
        return v[:, :, :1] + 0 * q[..., : v.shape[3]] if q.shape[3] >= v.shape[3] else q[..., :1] + 0 * v[:, :, :1]

    target = make_target("mine", raising, {"framework": "numpy", "dtypes": ["float64"]})
    prop = PROPERTIES["output_is_inside_the_bound"]
    for case in (Case(queries=2, keys=2), Case(queries=3, keys=2), Case()):
        plain = try_case(target, prop, case)
        with isolated():
            apart = try_case(target, prop, case)
        assert (plain is None) == (apart is None)
        assert plain is None or plain.says == apart.says  # type: ignore[union-attr]


HANGING = """
import time

import torch
from torch import nn


class Hanging(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.inner = nn.Linear(width, 3 * width)

    def forward(self, x):
        while {condition}:
            time.sleep(1)
        q, k, v = (y.unflatten(-1, (4, -1)).transpose(1, 2) for y in self.inner(x).chunk(3, -1))
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
"""


def test_a_call_that_hangs_in_an_isolated_case_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for but where another process waits for this one; what did hang once is waited for less long."""
    monkeypatch.setattr(watch, "_hung", [])
    monkeypatch.setattr(link, "WAITED", [])
    monkeypatch.setattr(link, "LEAST", 0.3)
    monkeypatch.setattr(link, "FIRST", 0.3)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def hangs() -> None:
        with watch.in_time():
            time.sleep(5)

    with isolated():
        assert killed_by(watch.in_time) == ""
        watch.wait_for_me()
        try:
            assert killed_by(hangs) == "gave no answer in 0 s: it hangs"
            assert killed_by(lambda: sum(range(1000))) == ""
            monkeypatch.setenv("OMP_NUM_THREADS", "2")  # the fork itself may be why
            assert killed_by(hangs) == ""
        finally:
            watch.do_not_wait()
    assert link.WAITED == [0.3]


@pytest.mark.nightly
def test_a_module_that_hangs_is_refuted(tmp_path: Path) -> None:
    """At one length; and where it hangs in a first call, which has two minutes, it cannot be run."""
    pytest.importorskip("torch")
    env = {"PYTHONPATH": str(ROOT), "PATH": "", "OMP_NUM_THREADS": "1"}
    for condition, status in (("x.shape[1] == 9", 1), ("True", 2)):
        (tmp_path / "hanging.py").write_text(HANGING.format(condition=condition))
        command = [sys.executable, "-m", "properties", "hanging.py:Hanging", "--property", "module_weights_are_unchanged"]
        ran = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert ran.returncode == status, ran.stderr
        assert "it hangs" in (ran.stdout if status == 1 else ran.stderr)
        assert status == 2 or '--case "Case(length=9)"' in ran.stdout
