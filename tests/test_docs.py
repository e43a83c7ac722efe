"""Documentation: links and headings are there, commands are told of, the site builds without a warning."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown.extensions.toc import slugify

from tias_slurm.cli.app import app

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
OTHERS = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "examples/README.md"]
OTHERS += sorted((ROOT / "contrib").rglob("README.md"))
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(\s*<?([^()<>\s]*)>?(?:\s+\"[^\"]*\")?\s*\)")
MENTION = re.compile(r"\bdocs/([a-z0-9-]+\.md)(?:#([a-z0-9_-]+))?")


def links(text: str) -> list[str]:
    """Where the links and pictures of a text lead to, also those of a picture that is a link."""
    text = prose(text)
    found = []
    for picture in re.findall(r"!" + LINK.pattern[2:], text):
        found.append(picture)
        text = re.sub(r"!\[[^\[\]]*\]\([^()]*\)", "picture", text, count=1)
    return found + LINK.findall(text)


def prose(text: str) -> str:
    """The text without its blocks and pieces of code, in which nothing is a link."""
    text = re.sub(r"(?ms)^(```|~~~).*?^\1\s*$", "", text)
    text = re.sub(r"(?m)^(?: {4}|\t).*$", "", text)
    return re.sub(r"`[^`\n]*`", "``", text)


def anchors(text: str) -> set[str]:
    """The names that both GitHub and the site give to a page's headings."""
    text = re.sub(r"(?ms)^(```|~~~).*?^\1\s*$", "", text)
    github, site = Counter[str](), Counter[str]()
    names: tuple[set[str], set[str]] = (set(), set())
    for heading in re.findall(r"(?m)^#{1,6} +(.+?)\s*#*$", text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        for seen, found, name, between in (
            (github, names[0], re.sub(r"[^\w\- ]", "", plain.lower()).strip().replace(" ", "-"), "-"),
            (site, names[1], slugify(re.sub(r"[`*]", "", plain), "-"), "_"),
        ):
            found.add(f"{name}{between}{seen[name]}" if seen[name] else name)
            seen[name] += 1
    return names[0] & names[1]


def faults(page: Path, text: str) -> Iterator[str]:
    """What is wrong with the links of a page."""
    for target in links(text):
        parts = urlsplit(target)
        if parts.scheme or target.startswith("//"):
            # of those to other hosts only the form is looked at
            good = parts.scheme in ("https", "http") and re.fullmatch(r"[a-z0-9.-]+\.[a-z]{2,}", parts.netloc)
            if not good or target[-1] in ".,;":
                yield f"{target}: is no address of a page"
            continue
        other = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        if not other.is_relative_to(ROOT) or not other.exists():
            yield f"{target}: there is no such file"
        elif parts.path.startswith("/"):
            yield f"{target}: write it relative to the page"
        elif parts.fragment:
            known = (
                anchors(text if other == page else other.read_text("utf-8")) if other.suffix == ".md" else ()
            )
            if parts.fragment not in known:
                yield f"{target}: there is no such heading"
        elif not target:
            yield "an empty link"


@pytest.mark.parametrize("page", DOCS + OTHERS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert list(faults(page, page.read_text("utf-8"))) == []


PLANTED = {
    "[a](docs/nowhere.md)": "no such file",
    "[a](docs/install.md#the-accounts-in-slurm)": "no such heading",
    "[a](#no-such-heading)": "no such heading",
    "[a](docs/install.md#Hardening)": "no such heading",
    "[a](../outside.md)": "no such file",
    "[a](/etc/passwd)": "no such file",
    "[a]()": "an empty link",
    "[a](https:/example.org)": "no address",
    "[a](htps://example.org/x)": "no address",
    "[a](https://example.org/x.)": "no address",
    "[![b](docs/no.png)](docs/install.md)": "no such file",
    '[a](docs/nowhere.md "with a title")': "no such file",
}


@pytest.mark.parametrize("link", PLANTED)
def test_a_wrong_link_would_be_found(link: str) -> None:
    page = ROOT / "README.md"
    text = page.read_text("utf-8")
    (found,) = faults(page, f"{text}\n\nSee {link} for more.\n")
    assert PLANTED[link] in found
    # but not in code
    assert list(faults(page, f"{text}\n\n    {link}\n\n```\n{link}\n```\n\nand `{link}`\n")) == []


@pytest.mark.parametrize(
    "link",
    ["[a](docs/install.md#hardening)", "[a](#try-it)", "[a](docs)", "[a](https://example.org/x?y=1#z)"],
)
def test_a_right_one_is_taken(link: str) -> None:
    page = ROOT / "README.md"
    assert list(faults(page, f"{page.read_text('utf-8')}\n\n{link}\n")) == []


def test_pages_that_are_named_are_there() -> None:
    """In messages, comments, units and settings too, with their headings."""
    known = {page.name: anchors(page.read_text("utf-8")) for page in DOCS}
    places = [ROOT / name for name in ("README.md", "Makefile", "CHANGELOG.md", "pyproject.toml")]
    for room in ("docs", "tias_slurm", "contrib", "systemd", "examples", "bench"):
        kinds = {".md", ".py", ".toml", ".lua", ".1", ".5", ".service", ".yml", ".json", ".conf", ".sh", ""}
        places += [f for f in (ROOT / room).rglob("*") if f.is_file() and f.suffix in kinds]
    missing = []
    for place in places:
        for name, heading in MENTION.findall(place.read_text("utf-8", "replace").replace("\\-", "-")):
            if name not in known or (heading and heading not in known[name]):
                missing.append(f"{place.relative_to(ROOT)}: docs/{name}{'#' if heading else ''}{heading}")
    assert missing == []


def commands() -> list[str]:
    """All that `tias-slurm --help` lists."""
    return [command.name or str(command.callback.__name__) for command in app.registered_commands]


def test_every_command_has_its_place() -> None:
    """In the man page, and in a page for those who use it."""
    man = (ROOT / "contrib/man/tias-slurm.1").read_text("utf-8")
    pages = "\n".join(page.read_text("utf-8") for page in DOCS)
    for name in commands():
        escaped = name.replace("-", "\\-")
        assert f".SS {escaped}\n" in man, name
        assert re.search(rf"tias-slurm {re.escape(name)}\b", pages), name


def test_every_page_can_be_reached() -> None:
    """From the README and from the site's first page."""
    for start in (ROOT / "README.md", ROOT / "docs/index.md"):
        targets = links(start.read_text("utf-8"))
        reached = {(start.parent / target.partition("#")[0]).resolve() for target in targets}
        assert [page.name for page in DOCS if page.name != "index.md" and page not in reached] == [], start


def built(tmp_path: Path, page: str = "", text: str = "") -> subprocess.CompletedProcess[str]:
    """The site, with a text added to a page."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    if page:
        with (tmp_path / "docs" / page).open("a") as file:
            file.write(text)
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    return subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = built(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert {page.stem for page in DOCS if page.stem != "index"} <= {
        p.name for p in (tmp_path / "site").iterdir()
    }
    # who reads it asks no other host for anything
    for page in (tmp_path / "site").rglob("*.html"):
        assert re.findall(r"""(?:src|href)=["']https?://[^"']*\.(?:js|css)""", page.read_text("utf-8")) == []


@pytest.mark.parametrize(
    "link",
    ["[a](nowhere.md)", "[a](install.md#no-such-heading)", "[a](#no-such-heading)", "[a](../README.md)"],
)
def test_the_site_does_not_build_with_a_broken_link(tmp_path: Path, link: str) -> None:
    done = built(tmp_path, "operate.md", f"\n{link}\n")
    assert done.returncode != 0
    assert "WARNING" in done.stderr
