#!/usr/bin/env python3
"""Collects the Python files of source folders into code.xz: one text, documents separated by a zero byte."""

import argparse
import lzma
from pathlib import Path


def documents(folders):
    """Every readable, non-empty Python file, folder by folder in order of path."""
    for folder in folders:
        for path in sorted(folder.rglob("*.py"), key=str):
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
            if text.strip() and "\0" not in text:
                yield text


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="where to look for Python files")
    parser.add_argument("--out", type=Path, default=Path("code.xz"), help="file to write (%(default)s)")
    arguments = parser.parse_args()
    collected = list(documents(arguments.folders))
    with lzma.open(arguments.out, "wb") as out:
        out.write("\0".join(collected).encode())
    print(f"{len(collected)} documents, {sum(map(len, collected)) / 1e6:.1f} M characters")


if __name__ == "__main__":
    main()
