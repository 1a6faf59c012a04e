"""``attncheck completion``: what bash then completes; the scripts of other shells name the same; a sentence where shtab is missing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from properties.engine.doors.cli import WORDS, main

TRY = """
try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _shtab_attncheck; echo "${COMPREPLY[*]}"; }
try attncheck expl
try attncheck numpy_matmul.a
try attncheck myk
try attncheck mykernel.py : attention --prop
try attncheck mykernel.py : attention --property future_tokens
try attncheck mykernel.py : attention --html pa
try attncheck show --te
try attncheck new mut
"""
SAYS = ["explain", "numpy_matmul.attention", "mykernel.py", "--property", "future_tokens_are_ignored", "page.html", "--text", "mutant"]


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = script("bash", capsys)
    if sys.platform == "win32" or not shutil.which("bash"):
        pytest.skip("needs bash")
    for name in ("mykernel.py", "page.html"):
        (tmp_path / name).touch()
    ran = subprocess.run(["bash", "-c", text + TRY], cwd=tmp_path, text=True, capture_output=True)
    assert ran.stdout.splitlines() == SAYS, ran.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_the_same(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    for name in (*WORDS, "list", "property", "future_tokens_are_ignored", "numpy_matmul.attention", "text"):
        assert name in text, name
    assert shell == "fish" or "*) _arguments -C -s $_shtab_attncheck_options" in text
    if shutil.which(shell):
        (tmp_path / "script").write_text(text, encoding="utf-8")
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)


def test_without_shtab(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("attncheck: completion needs shtab") and said.endswith('pip install "attncheck[completion]"\n')
