"""python local/fetch.py LANG FOLDER: the maker's own 16 kHz prompts of one language into FOLDER."""

from __future__ import annotations

import argparse
import re
import sys
import tarfile
import urllib.request
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import wrap_file

URL = (
    "https://downloads.asterisk.org/pub/telephony/sounds/releases/"
    "asterisk-core-sounds-{lang}-sln16-1.6.1.tar.gz"
)
WANTED = re.compile(r"(?:[\w+-][\w.+-]*/)*[\w+-][\w.+-]*\.(?:sln16|txt)")  # no way out of FOLDER
MOST_BYTES = 1 << 30  # of one archive, unpacked; the real ones hold about 60 MB


def unpack(stream: IO[bytes], folder: Path) -> int:
    """Write the sounds and texts of a gzipped tar stream below `folder`; their number.

    Members are written one by one under checked names, so that no link, device, absolute path
    or `..` in the archive has any effect.

    Raises:
        ValueError: more than MOST_BYTES, or no sound at all.
        tarfile.TarError, EOFError, OSError: damaged or truncated.
    """
    count = total = 0
    with tarfile.open(fileobj=stream, mode="r|gz") as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            content = archive.extractfile(member) if member.isfile() else None
            if content is None or not WANTED.fullmatch(name):
                continue
            total += member.size
            if total > MOST_BYTES:
                raise ValueError(f"more than {MOST_BYTES} bytes")
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content.read())
            count += name.endswith(".sln16")
    if count == 0:
        raise ValueError("no .sln16 file in it")
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lang")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--url", default=URL, help="with {lang} in it")
    arguments = parser.parse_args()
    url = arguments.url.format(lang=arguments.lang)
    console = Console(stderr=True)
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            size = int(response.headers.get("Content-Length") or 0)
            with wrap_file(response, size, description=arguments.lang, console=console) as stream:
                count = unpack(stream, arguments.folder)
    except (OSError, EOFError, ValueError, tarfile.TarError) as error:
        sys.stderr.write(
            f"{url}: {error}\n"
            f"Try again later, or get the sounds another way and run: egs/asterisk/run.sh "
            f"--db_root FOLDER, where FOLDER/{arguments.lang}/ holds the .sln16, .g722 or .wav "
            f"files and core-sounds-{arguments.lang}.txt.\n"
        )
        return 3
    console.print(f"{url}: {count} sounds")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
