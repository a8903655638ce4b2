"""What makes the site of docs/ as it is in the repository: its contents are docs/index.md's, and what lies beside docs/
is in it, or named."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_ROOT = Path(__file__).parent.parent
# Pages of the site that are files of the repository.
_ELSEWHERE = {"README.md": "readme.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_ENTRY = re.compile(r"^( *)- (.*)$")


def on_config(config: Any) -> Any:
    """The navigation: docs/index.md's list, and each decision."""
    nav: list[Any] = [{"Documentation": "index.md"}]
    section: list[Any] = nav
    for line in (_ROOT / "docs/index.md").read_text().splitlines():
        entry = _ENTRY.match(line)
        if entry is None:
            continue
        links = [(text.replace("`", ""), target) for _, text, target, _ in _LINK.findall(entry[2])]
        if not entry[1]:
            section = nav
        if not links:
            section = []
            nav.append({entry[2]: section})
        section += [{text: _in_site(posixpath.normpath(f"docs/{target}"))} for text, target in links]
    pages = sorted(path.name for path in (_ROOT / "docs/decisions").glob("0*.md"))
    nav.append({"All decisions": [f"decisions/{name}" for name in pages]})
    nav.append({"Changelog": "changelog.md"})
    config.nav = nav
    return config


def on_files(files: Files, config: Any) -> Files:
    """README and CHANGELOG are pages, too."""
    for name, target in _ELSEWHERE.items():
        files.append(File.generated(config, target, content=(_ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links that lead out of docs/ lead to what stands for it in the site; to nothing, where it is the repository's."""
    origin = {target: name for name, target in _ELSEWHERE.items()}
    here = origin.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def replaced(link: re.Match[str]) -> str:
        image, text, target, anchor = link[1], link[2], link[3], link[4] or ""
        if re.match(r"\w+:", target):
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        site = _in_site(path)
        if not site:
            return text if f"`{path}`" in text else f"{text} (`{path}`)"
        return f"{image}[{text}]({posixpath.relpath(site, posixpath.dirname(page.file.src_uri) or '.')}{anchor})"

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(replaced, part) for part in parts)


def _in_site(path: str) -> str:
    """Where a file of the repository is in the site; empty: not in it."""
    if path in _ELSEWHERE:
        return _ELSEWHERE[path]
    if path in ("docs/decisions", "docs"):
        return f"{path}/README.md".removeprefix("docs/")
    return path.removeprefix("docs/") if path.startswith("docs/") and (_ROOT / path).is_file() else ""
