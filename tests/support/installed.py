"""The wheel, built from a copy of the tree or from its sdist and installed into a folder of its own, without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "conftest.py")
SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


@dataclass(frozen=True)
class Installed:
    """An installed wheel: commands run with it and with the packages of this interpreter, never with the clone."""

    source: Path  # the copy of the tree from which it was built
    wheel: Path
    target: Path  # where it is installed

    def run(self, command: str | list[str], folder: Path) -> subprocess.CompletedProcess[str]:
        """Run a command in a folder; a text is left to the shell."""
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONPATH"))}
        commands = [str(self.target / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
        mine |= {"PYTHONPATH": str(self.target), "PATH": os.pathsep.join(commands), "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
        return subprocess.run(
            command, shell=isinstance(command, str), cwd=folder, env=mine, text=True, encoding="utf-8", capture_output=True, timeout=300
        )


def install(folder: Path, sdist: bool = False) -> Installed:
    """Copy the tree, build its wheel, through an sdist or at once, and install it, all inside ``folder``."""
    source, target = folder / "source", folder / "target"
    for name in ("impls", "properties"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in FILES:
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-deps", "--no-index"]
    built_from = source
    if sdist:
        subprocess.run([sys.executable, "-c", SDIST, str(folder)], cwd=source, check=True, capture_output=True, timeout=120)
        (built_from,) = folder.glob("*.tar.gz")
    build = [*pip, "wheel", *offline, "--no-build-isolation", "--wheel-dir", str(folder / "dist"), str(built_from)]
    subprocess.run(build, check=True, timeout=120)
    (wheel,) = (folder / "dist").glob("*.whl")
    subprocess.run([*pip, "install", *offline, "--target", str(target), str(wheel)], check=True, timeout=120)
    return Installed(source, wheel, target)
