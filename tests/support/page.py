"""What is wrong with a page, by the rules that need no browser: its elements, its references, its names for a screen reader."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr", "img", "input"}
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "object": "data", "video": "src", "audio": "src", "source": "src"}
NAMED = ("button", "a", "summary", "h1", "h2", "h3", "svg", "meter", "figcaption")


@dataclass(eq=False)
class Element:
    """An element with what is in it."""

    tag: str
    attributes: dict[str, str]
    inside: list[Element | str] = field(default_factory=list)

    def walk(self) -> Iterator[Element]:
        """It, and all elements in it."""
        yield self
        for one in self.inside:
            if isinstance(one, Element):
                yield from one.walk()

    @property
    def text(self) -> str:
        """All text in it, as a browser would have it."""
        return " ".join("".join(one if isinstance(one, str) else f" {one.text} " for one in self.inside).split())

    def all(self, tag: str, words: str = "") -> list[Element]:
        """The elements of a name, and of a class if one is given."""
        return [e for e in self.walk() if e.tag == tag and (not words or words in e.attributes.get("class", "").split())]


class Reader(HTMLParser):
    """A tree; what is not closed, or closed in the wrong order, is noted."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.open = [self.root]
        self.faults: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        self.faults += [f"<{tag}> has {name} twice" for name in {n for n in names if names.count(n) > 1}]
        made = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].inside.append(made)
        if tag not in VOID:
            self.open.append(made)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if self.open[-1].tag != tag:
            self.faults.append(f"</{tag}> closes <{self.open[-1].tag}>")
        else:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].inside.append(data)


def read(text: str) -> tuple[Element, list[str]]:
    """The tree of a page, and what is wrong with its form."""
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader.root, reader.faults + [f"<{e.tag}> is not closed" for e in reader.open[1:]]


def faults(text: str) -> list[str]:
    """All that is wrong with a page."""
    root, found = read(text)
    elements = list(root.walk())
    ids = [e.attributes["id"] for e in elements if "id" in e.attributes]
    found += [f"two elements have the id {name}" for name in {n for n in ids if ids.count(n) > 1}]
    for e in elements:
        for name in ("aria-labelledby", "aria-describedby", "data-copy"):
            found += [f"{name} names {at}, which is nowhere" for at in e.attributes.get(name, "").split() if at not in ids]
        href = e.attributes.get("href", "") or e.attributes.get("xlink:href", "")
        if href.startswith("#") and href[1:] not in ids:
            found.append(f"a link leads to {href}, which is nowhere")
        source = e.attributes.get(LOADS.get(e.tag, ""), "")
        if source and not source.startswith("data:"):
            found.append(f"<{e.tag}> loads {source}")
        if e.tag in NAMED and not (e.text or e.attributes.get("aria-label")):
            found.append(f"a <{e.tag}> has no name")
        if e.tag == "th" and e.attributes.get("scope") not in ("row", "col"):
            found.append(f"a header cell heads nothing: {e.text}")
        if any(name.startswith("on") for name in e.attributes):
            found.append(f"<{e.tag}> has a handler of its own")
        if e.attributes.get("role") in ("region", "group") and not (e.attributes.get("aria-label") or e.attributes.get("aria-labelledby")):
            found.append("a region has no name")
        if "scroll" in e.attributes.get("class", "").split() and e.attributes.get("tabindex") != "0":
            found.append("what scrolls cannot be reached by keyboard")
    levels = [int(e.tag[1]) for e in elements if e.tag in ("h1", "h2", "h3", "h4")]
    found += [f"a heading of level {b} follows one of level {a}" for a, b in itertools.pairwise(levels) if b > a + 1]
    if root.all("html"):
        found += [f"there are {len(root.all(tag))} <{tag}>" for tag in ("h1", "main", "title") if len(root.all(tag)) != 1]
        found += [] if root.all("html")[0].attributes.get("lang") else ["the page has no language"]
    for table in root.all("table"):
        for row in table.all("tr"):
            width = len(table.all("tr")[0].all("th")) + len(table.all("tr")[0].all("td"))
            if len(row.all("th")) + len(row.all("td")) != width:
                found.append(f"a row of {len(row.all('th')) + len(row.all('td'))} cells in a table of {width}: {row.text[:60]}")
    return found
