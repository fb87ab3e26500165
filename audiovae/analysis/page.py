"""A static page to listen and look: rows of audio players and figures, in sections."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from audiovae.data.atomic import write_text

_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
figure {{ display: inline-block; margin: 0 1rem .5rem 0; }}
img {{ max-width: 100%; max-height: 22rem; }}
audio {{ display: block; width: 16rem; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


@dataclass(frozen=True)
class Clip:
    """An audio file beside the page, and what to call it."""

    label: str
    file: str


@dataclass(frozen=True)
class Row:
    """What belongs together: clips, then figures (files beside the page)."""

    title: str
    clips: Sequence[Clip]
    figures: Sequence[str] = ()


@dataclass(frozen=True)
class Section:
    """Rows under one heading."""

    title: str
    rows: Sequence[Row]


def write_page(path: Path, title: str, sections: Sequence[Section]) -> Path:
    """Write the page, atomically; its path."""
    body = "\n".join(
        f"<h2>{html.escape(section.title)}</h2>\n" + "\n".join(map(_row, section.rows))
        for section in sections
    )
    write_text(path, _PAGE.format(title=html.escape(title), body=body))
    return path


def _row(row: Row) -> str:
    clips = "\n".join(
        f"<figure><figcaption>{html.escape(clip.label)}</figcaption>"
        f'<audio controls preload="none" src="{quote(clip.file)}"></audio></figure>'
        for clip in row.clips
    )
    figures = "\n".join(
        f'<img src="{quote(file)}" alt="{html.escape(file)}">' for file in row.figures
    )
    return f"<h3>{html.escape(row.title)}</h3>\n{clips}\n{figures}"
