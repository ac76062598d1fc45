"""Links in documents lead to a file that is there, and to a heading that it has; here, and on the site."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.processes import ROOT

DOCUMENTS: Final = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "deploy/**/*.md", "bench/**/*.md", "requirements/*.md")
    for path in ROOT.glob(pattern)
)


def prose(document: Path) -> str:
    """Without blocks of code."""
    return re.sub(r"^ *```.*?^ *```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(document: Path) -> set[str]:
    """As GitHub makes them: small letters, blanks as hyphens, and no other marks; a second one has a number."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(document), re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        anchor = name = re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")
        number = 0
        while name in found:
            number += 1
            name = f"{anchor}-{number}"
        found.add(name)
    return found


def links(document: Path) -> Iterator[str]:
    """Those to files of the repository. What stands between backticks is no link."""
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", prose(document))):
        if not re.match(r"[a-z]+:", link):
            yield link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_every_link_leads_somewhere(document: Path) -> None:
    broken = []
    for link in links(document):
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)

    assert broken == []


def test_every_document_is_linked_from_another() -> None:
    linked = {
        (document.parent / link.partition("#")[0]).resolve() for document in DOCUMENTS for link in links(document)
    }

    assert [document.name for document in ROOT.glob("docs/*.md") if document not in linked] == []


def test_the_site_has_every_file_that_a_document_links_to() -> None:
    """The build refuses a link to a file that `make docs` does not copy. Folders, which are not pages, it leaves."""
    [copied] = re.findall(r"@cp -r (.*) \.site/source", (ROOT / "Makefile").read_text(encoding="utf-8"))
    there = [path for pattern in copied.split() for path in ROOT.glob(pattern)]
    missing = [
        f"{document.name}: {link}"
        for document in DOCUMENTS
        for link in links(document)
        if (target := (document.parent / link.partition("#")[0]).resolve()).is_file()
        if not any(target.is_relative_to(path) for path in there)
    ]

    assert missing == []


def test_the_menu_of_the_site_has_pages_that_are_there() -> None:
    """A document that is not in it is on the site too, where others link to it."""
    pages = re.findall(r"[\w/-]+\.md\b", (ROOT / "docs/mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2])

    assert len(pages) > 15
    assert {ROOT / page for page in pages} <= set(DOCUMENTS)


def test_the_drawing_of_the_readme_is_as_wide_as_the_site_at_most() -> None:
    """80 columns at 1440 pixels, between the two menus; the rest would be cut."""
    drawing = (ROOT / "README.md").read_text(encoding="utf-8").split("```")[1]

    assert max(map(len, drawing.splitlines())) <= 80
