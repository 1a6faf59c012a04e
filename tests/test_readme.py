"""The README is run: its files are written, its commands are run where the wheel is installed, its output is compared.

A ``console`` block holds commands (``$ …``) and what they print on standard output; a line ``…`` stands for lines left
out. A code block below a line such as "`name.py`:" is that file; any other Python block is run; a TOML block without a
name is an entry of impls/deviations.toml. Times, and counts that may change with the version of Hypothesis, are not
compared. Commands that install, or that take long, are checked by name.

    python tests/test_readme.py        brings what the README shows up to date
"""

from __future__ import annotations

import configparser
import dataclasses
import difflib
import importlib.util
import re
import shlex
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from installed import ROOT, Installed, install

README = ROOT / "README.md"
BLOCK = re.compile(r"(?:^`(?P<name>[\w.]+)`:\n\n)?^```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LEFT_OUT = "…"
VARIES = (
    (r"\d+(\.\d+)? s\b", "T s"),
    (r"case \d+ of", "case N of"),
    (r" +[\d,]+ (cases|set aside|judged|elements)", r" N \1"),
    (r"(for|of) +[\d,]+ of", r"\1 N of"),
    (r"\d+ properties hold, [1-9]\d* refuted", "M properties hold, some refuted"),
    (r"at most \d\.\d\d of", "at most F of"),
    (r"\d+%", "P%"),
    (r" {3,}\d+k?(?= |$)", " N"),
)


@dataclass(frozen=True)
class Block:
    kind: str
    name: str | None
    body: str


@dataclass(frozen=True)
class Command:
    text: str
    shown: tuple[str, ...]  # the lines below it

    @property
    def by_name(self) -> bool:
        """Whether it is too long, or reaches too far, to be run here."""
        return self.text.startswith(("tox ", "pip ")) or "--time" in self.text

    @property
    def status(self) -> int:
        """1 where a refutation is shown."""
        return int(any(line.startswith("REFUTED") for line in self.shown))


def blocks(text: str) -> Iterator[Block]:
    for found in BLOCK.finditer(text):
        yield Block(found["kind"], found["name"], found["body"])


def commands(body: str) -> list[Command]:
    made: list[Command] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            made.append(Command(line[2:].split("  #")[0].strip(), ()))
        else:
            made[-1] = dataclasses.replace(made[-1], shown=(*made[-1].shown, line))
    return made


def plain(line: str) -> str:
    """A line without what varies from run to run."""
    for pattern, instead in VARIES:
        line = re.sub(pattern, instead, line)
    return line.rstrip()


def missing(shown: tuple[str, ...], printed: list[str]) -> str | None:
    """The first line shown that is not printed where it should be; None if all are."""
    lines, at, anywhere = [plain(line) for line in printed], 0, False
    for line in shown:
        if line == LEFT_OUT:
            anywhere = True
            continue
        places = range(at, len(lines)) if anywhere else range(at, min(at + 1, len(lines)))
        found = next((place for place in places if lines[place] == plain(line)), None)
        if found is None:
            return line
        at, anywhere = found + 1, False
    return None if anywhere or not shown or at == len(lines) else f"the end, before {printed[at]!r}"


def walk(text: str, attncheck: Installed, folder: Path) -> Iterator[tuple[Command, int, str, str]]:
    """Write the files and run the commands, in the order of the page: command, status, output, errors."""
    for block in blocks(text):
        if block.kind not in ("python", "toml", "console"):
            continue
        if block.name:
            (folder / block.name).write_text(block.body, encoding="utf-8")
            continue
        found = commands(block.body) if block.kind == "console" else []
        if block.kind == "python":
            (folder / "script.py").write_text(block.body, encoding="utf-8")
            found = [Command("python script.py", ())]
        for command in found:
            if command.by_name or ("torch" in command.text and importlib.util.find_spec("torch") is None):
                continue
            ran = attncheck.run(command.text, folder)
            yield command, ran.returncode, ran.stdout, ran.stderr


@pytest.fixture(scope="module")
def attncheck(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("wheel"))


def test_readme_runs(attncheck: Installed, tmp_path: Path) -> None:
    count = 0
    for command, status, out, errors in walk(README.read_text(encoding="utf-8"), attncheck, tmp_path):
        count += 1
        assert status == command.status, f"$ {command.text}\n{out}{errors}"
        gone = missing(command.shown, out.splitlines())
        assert gone is None, f"$ {command.text}\nthe README shows\n{gone}\nbut this is printed:\n{out}"
    assert count >= 8


def test_commands_that_are_not_run_exist() -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    seen = [c for block in blocks(README.read_text(encoding="utf-8")) if block.kind == "console"
            for c in commands(block.body) if c.by_name]  # fmt: skip
    for command in seen:
        words = shlex.split(command.text)
        if words[0] == "tox":
            assert words[1:3] == ["run", "-e"]
            factors = all(re.fullmatch(r"py3\d+", f) or f"{f}:" in tox["testenv"]["deps"] for f in words[3].split("-"))
            assert tox.has_section(f"testenv:{words[3]}") or factors, command.text
    assert [c.text for c in seen][:2] == ["tox run -e verify", "tox run -e test"]
    for extra in re.findall(r"pip install \"\.\[(\w+)\]\"", README.read_text(encoding="utf-8")):
        assert extra in extras


def table(heading: str) -> list[list[str]]:
    """The rows of the table below the row that starts so."""
    lines = README.read_text(encoding="utf-8").splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows = []
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_themes_and_their_number_of_properties() -> None:
    from properties.catalogue import PROPERTIES

    count = Counter(prop.theme for prop in PROPERTIES.values())
    assert [(theme, int(number)) for theme, number, _ in table("theme")] == list(count.items())


def test_keys_of_supports_and_their_defaults() -> None:
    from properties.engine.core.supports import Supports

    rows = {name.strip("`"): default.strip("`") for name, default, _ in table("key")}
    fields = {field.name: field.default for field in dataclasses.fields(Supports)}
    assert list(rows) == list(fields)
    for name, default in fields.items():
        if isinstance(default, bool | str):
            assert rows[name] == (f'"{default}"' if isinstance(default, str) else str(default).lower()), name


def test_options(attncheck: Installed, tmp_path: Path) -> None:
    usage = attncheck.run(["attncheck", "--help"], tmp_path).stdout
    told = {word for name, _ in table("option") for word in re.findall(r"--\w+", name)}
    assert told == set(re.findall(r"^ .*?(--\w+)", usage.split("options:")[1], re.MULTILINE)) - {"--help"}


def test_the_deviation_is_a_real_one() -> None:
    shown = [tomllib.loads(block.body)["deviation"][0] for block in blocks(README.read_text(encoding="utf-8"))
             if block.kind == "toml" and not block.name]  # fmt: skip
    real = tomllib.loads((ROOT / "impls" / "deviations.toml").read_text(encoding="utf-8"))["deviation"]
    for entry in shown:
        assert any(entry.items() <= other.items() for other in real)


def test_the_map_names_files_that_exist() -> None:
    """Every file of the map, in the folder of its line; and every folder of ``properties`` is in it."""
    (house,) = (block.body for block in blocks(README.read_text(encoding="utf-8")) if block.kind == "text")
    places: list[str] = []
    for line in house.splitlines():
        place, says = line.split(maxsplit=1)
        assert (ROOT / place).exists(), place
        assert (ROOT / place).is_dir() == place.endswith("/"), place
        for name in re.findall(r"\b\w+(?:\.py|\.toml|/)", says):
            assert (ROOT / place / name).exists(), f"{place}{name}"
        places.append(place)
    folders = {f"{path.parent.relative_to(ROOT).as_posix()}/" for path in (ROOT / "properties").rglob("__init__.py")}
    assert folders <= set(places) and len(set(places)) == len(places)


def bring_up_to_date() -> None:
    """Replace every shown line that is no longer printed by the printed line that is most like it."""
    text = README.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        work.mkdir()
        for command, _, out, _ in walk(text, install(Path(folder)), work):
            printed = out.splitlines()
            if missing(command.shown, printed) is None:
                continue
            print(f"$ {command.text}\n{out}")
            known = {plain(line) for line in printed}
            new = [line if line == LEFT_OUT or plain(line) in known
                   else next(iter(difflib.get_close_matches(line, printed, 1, 0.3)), LEFT_OUT) for line in command.shown]  # fmt: skip
            text = text.replace("\n".join(command.shown), "\n".join(new))
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(bring_up_to_date())
