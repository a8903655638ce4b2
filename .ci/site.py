"""Build the site from docs/ as it is in the repository.

The contents come from the list in docs/index.md. A session (a block whose commands have `relay$ ` in front) becomes one
block for each machine, without prompts: the copy button copies the commands alone. Sections between `<!-- tabs -->` and
`<!-- end of tabs -->` become tabs. Links to files that are not part of the site become text.
"""

from __future__ import annotations

import posixpath
import re
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import BashLexer

_ROOT = Path(__file__).parent.parent
# Pages of the site that lie beside docs/.
_ELSEWHERE = {"CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_ENTRY = re.compile(r"^( *)- (.*)$")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROMPT = re.compile(r"^(\w+)\$ +", re.MULTILINE)
_TABS = re.compile(r"^<!-- tabs -->\n(.*?)^<!-- end of tabs -->\n", re.MULTILINE | re.DOTALL)
_FORMATTER = HtmlFormatter(nowrap=True)


def on_config(config: Any) -> Any:
    """Take the navigation from docs/index.md, and render sessions."""
    session = {"name": "session", "class": "session", "format": _session}
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [session]}
    nav: list[Any] = [{"Home": "index.md"}]
    section: list[Any] = nav
    _, _, contents = (_ROOT / "docs/index.md").read_text().partition("\n## All pages\n")
    for line in contents.splitlines():
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
    config.nav = nav
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the changelog as a page, and the icon."""
    for name, target in _ELSEWHERE.items():
        files.append(File.generated(config, target, content=(_ROOT / name).read_text()))
    icon = _ROOT / "edgelink/api/web/static/icon.svg"
    files.append(File.generated(config, config.theme["favicon"], content=icon.read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_kwargs: Any) -> str:
    """Make tabs and sessions. A link that leads out of docs/ gets the page that stands for it in the site, if any."""
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
    parts = [_FENCE.sub(_named, part) if part.startswith("```") else _LINK.sub(replaced, part) for part in parts]
    markdown = "".join(parts)
    if page.file.src_uri == "index.md":  # its list of all pages is the navigation
        page.meta["hide"] = ["navigation", "toc", "footer"]
        markdown, _, _ = markdown.partition("\n## All pages\n")
    return _TABS.sub(_tabbed, markdown)


def _named(fence: re.Match[str]) -> str:
    """Name the language of a session, which has none in the repository."""
    return fence[0].replace("```", "```session", 1) if not fence[1] and _PROMPT.search(fence[2]) else fence[0]


def _tabbed(sections: re.Match[str]) -> str:
    """Turn each section of the third level into a tab."""
    indented = re.sub(r"^(?=.)", "    ", sections[1], flags=re.MULTILINE)
    return re.sub(r"^    ### (.*)$", r'=== "\1"', indented, flags=re.MULTILINE)


def _session(source: str, language: str, css_class: str, options: Any, md: Any, **_: Any) -> str:
    """Render a session: a block for each machine, with its name as the title."""
    lines: list[tuple[str, bool, str]] = []  # machine, whether it is typed, text
    here_document, goes_on = "", False
    for line in source.splitlines():
        if prompt := None if here_document else _PROMPT.match(line):
            lines.append((prompt[1], True, line[prompt.end() :]))
            here_document = "".join(re.findall(r"<<'(\w+)'", line))
        else:
            lines.append((lines[-1][0], goes_on or bool(here_document), line))
            here_document = "" if line == here_document else here_document
        goes_on = lines[-1][1] and line.endswith("\\")
    blocks = []
    for machine, run in groupby(lines, key=lambda each: each[0]):
        code = ""
        for is_typed, part in groupby(run, key=lambda each: each[1]):
            text = "".join(f"{each[2]}\n" for each in part)
            code += highlight(text, BashLexer(), _FORMATTER) if is_typed else f'<span class="go">{escape(text)}</span>'
        title = f'<span class="filename">{machine}</span>'
        blocks.append(f'<div class="highlight {css_class}">{title}<pre><code>{code}</code></pre></div>')
    return "\n".join(blocks)


def _in_site(path: str) -> str:
    """Where a file of the repository is in the site; empty: not in it."""
    if path in _ELSEWHERE:
        return _ELSEWHERE[path]
    if path in ("docs/decisions", "docs"):
        return f"{path}/README.md".removeprefix("docs/")
    return path.removeprefix("docs/") if path.startswith("docs/") and (_ROOT / path).is_file() else ""
