"""Files that are written: what goes wrong with one is told with its name."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from pathlib import Path

import pytest

from properties.engine.doors.streams import Output, sentence
from properties.engine.search.journal import Journal


def test_what_is_written_is_there(tmp_path: Path) -> None:
    place = str(tmp_path / "it.txt")
    for adds, text in ((False, "a\N{SUPERSCRIPT TWO}\n"), (True, "\ud800")):
        with closing(Output(place, adds)) as file:
            file.write(text)
    assert Path(place).read_bytes() == "a\N{SUPERSCRIPT TWO}\n\\ud800".encode()


def test_a_file_is_named_whenever_it_cannot_be_written() -> None:
    with pytest.raises(OSError) as caught, closing(Output("/dev/full")) as file:
        file.write("text")
    assert sentence(caught.value) == "/dev/full: No space left on device; make room, or give another place"
    with pytest.raises(OSError) as caught:
        Journal("/dev/full").write(ended=0)
    assert sentence(caught.value) == "/dev/full: No space left on device; make room, or give another place"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError("a sentence"), "a sentence"),
        (OSError("a sentence"), "a sentence"),
        (OSError(errno.EIO, "an error"), "an error"),
        (OSError(errno.ENOSPC, "a full disk"), "a full disk; make room, or give another place"),
        (OSError(errno.ENOENT, "no file", "it.txt"), "it.txt: no file"),
        (OSError(errno.ENOENT, "no file", os.path.join("nowhere", "it.txt")), "nowhere/it.txt: no file; there is no folder nowhere"),
        (PermissionError(errno.EACCES, "forbidden", "it.txt"), "it.txt: forbidden; give a place with the rights for it"),
        (OSError(errno.EFBIG, "too large", "it.txt"), "it.txt: too large; allow larger files (ulimit -f)"),
    ],
)
def test_an_error_of_the_system_is_told_in_words(error: Exception, says: str) -> None:
    assert sentence(error) == says
