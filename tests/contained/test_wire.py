"""Messages between two processes, and when these may stay awake for them."""

from __future__ import annotations

import json
import marshal
import socket
import struct
import time
from collections.abc import Iterator
from threading import Event, Thread, Timer

import pytest

from properties.engine.contained import link as links
from properties.engine.contained.wire import LENGTH, SLICE, Broken, Late, Wire


@pytest.fixture
def ends() -> Iterator[tuple[Wire, Wire]]:
    one, other = map(Wire, socket.socketpair())
    yield one, other
    one.close()
    other.close()


@pytest.mark.parametrize("awake", [False, True])
@pytest.mark.parametrize("after", [0.0, 0.05])  # seconds; far more than anything stays awake
def test_a_message_comes(ends: tuple[Wire, Wire], awake: bool, after: float) -> None:
    one, other = ends
    Timer(after, one.send, [{"a": 1}]).start()
    assert other.receive(time.monotonic() + 5, awake) == {"a": 1}


@pytest.mark.parametrize("awake", [False, True])
def test_nothing_that_comes_and_nobody_who_sends(ends: tuple[Wire, Wire], awake: bool) -> None:
    one, other = ends
    with pytest.raises(Late):
        other.receive(time.monotonic(), awake)
    one.close()
    with pytest.raises(Broken):
        other.receive(None, awake)


def test_two_messages_at_once_are_two(ends: tuple[Wire, Wire]) -> None:
    one, other = ends
    one.send(1)
    one.send(2)
    assert [other.receive(None, True), other.receive(None, True)] == [1, 2]


def test_what_was_not_received_is_seen(ends: tuple[Wire, Wire]) -> None:
    one, other = ends
    assert not other.has_more()
    one.send(1)
    one.send(2)
    assert other.has_more() and other.receive(None) == 1
    assert other.has_more() and other.receive(None) == 2
    assert not other.has_more()


def test_a_message_that_nobody_takes_is_late(ends: tuple[Wire, Wire], monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = ends
    one.end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 100_000))
    with pytest.raises(Late):
        for _ in range(100):
            one.send("x" * 2**20)


def test_nothing_of_a_stranger_s_moves_a_cursor() -> None:
    own, other = socket.socketpair()
    said = "a\x1b[2J\x00\x7f\x9b\u202eb\ud800\n\tπ…"
    stranger = Wire(own, stranger=True)
    for raw in (False, True):
        text = json.dumps({said: [said, 1]}, ensure_ascii=not raw).encode(errors="surrogatepass" if not raw else "replace")
        other.sendall(LENGTH.pack(len(text)) + text)
        ((name, (value, one)),) = stranger.receive(time.monotonic() + 5).items()
        assert one == 1 and name == value
        assert value.replace("\N{REPLACEMENT CHARACTER}", "").replace("?", "") == "a[2Jb\n\tπ…"
    own.close()
    other.close()


@pytest.mark.parametrize(
    ("cores", "running", "waits", "expected"),
    [
        (2, 1, False, True),  # this process alone
        (2, 2, False, False),  # and another
        (2, 2, True, True),  # which is the target's, and waits awake
        (2, 3, True, False),
        (1, 1, False, False),
        (4, 3, False, True),
        (4, 4, False, False),
        (4, 4, True, True),
        (2, 0, False, False),  # where the system does not say
    ],
)
def test_no_core_is_taken_from_another(cores: int, running: int, waits: bool, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_cores", lambda: cores)
    assert links.idle_core(running, waits) is expected


@pytest.mark.parametrize("piece", [LENGTH.pack(1), LENGTH.pack(1000) + b" "])  # of which no whole message comes
def test_what_trickles_in_has_an_end(ends: tuple[Wire, Wire], piece: bytes) -> None:
    one, other = ends
    done = Event()

    def trickle() -> None:
        one.end.sendall(piece[:2])
        for place in range(2, 60):
            if done.wait(0.05):
                break
            one.end.sendall(piece[place : place + 1] or b" ")
        one.close()

    sender = Thread(target=trickle)
    sender.start()
    try:
        with pytest.raises(Late):
            other.receive(time.monotonic() + 0.2 * (len(piece) > 4) - SLICE)
    finally:
        done.set()
        sender.join()


def test_half_a_character_of_a_stranger_is_none(ends: tuple[Wire, Wire]) -> None:
    """Of the checker's own it may be part of a path."""
    one, other = ends
    for stranger, comes in ((True, "a?b\\ud800"), (False, "a\ud800b\\ud800")):
        other.stranger = stranger
        one.send({"\N{PILE OF POO}": "a\ud800b\\ud800"})
        assert other.receive() == {"\N{PILE OF POO}": comes}


def test_the_judge_is_believed_and_believes_nobody() -> None:
    own, other = socket.socketpair()
    judge, target = Wire(own, stranger=True), Wire(other, believes=True)
    said = {"a": [1, 0.1, float("inf"), "π", None, True, (2, 3)]}
    judge.send(said)
    assert target.receive(time.monotonic() + 5) == said
    target.send({"r": [1, 0.1, "π"]})
    assert judge.receive(time.monotonic() + 5) == {"r": [1, 0.1, "π"]}
    other.sendall(LENGTH.pack(len(text := marshal.dumps({"r": 1}))) + text)
    with pytest.raises(Broken):
        judge.receive(time.monotonic() + 5)
    for text in (b"", b"\xff", b"{}"):
        own.sendall(LENGTH.pack(len(text)) + text)
        with pytest.raises(Broken):
            target.receive(time.monotonic() + 5)
    judge.close()
    target.close()
