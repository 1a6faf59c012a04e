"""Pages whose files are written, whose commands are run, and whose output is compared.

A ``console`` block holds commands (``$ …``) and what they print on standard output; a line ``…`` stands for lines left
out. A code block below a line such as "`name.py`:" is that file; any other Python block is run; other blocks are left alone. Times, and
counts that may change with the version of Hypothesis, are not compared. Commands that install, or that take long, are checked by name.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from installed import Installed

BLOCK = re.compile(r"(?:^`(?P<name>[\w.]+)`:\n\n)?^```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LEFT_OUT = "…"
VARIES = (
    (r"\d+(\.\d+)? s\b", "T s"),
    (r"case \d+ of", "case N of"),
    (r" 1 case\b", " 1 cases"),
    (r" +[\d,]+ (cases|set aside|set$|judged|elements)", r" N \1"),
    (r"(for|of) +[\d,]+ of", r"\1 N of"),
    (r"\d+ properties hold, [1-9]\d* refuted", "M properties hold, some refuted"),
    (r"\d+ properties hold, 0 refuted, [1-9]\d* not exercised", "M properties hold, 0 refuted, N not exercised"),
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
