#!/usr/bin/env python3
"""austen.py FOLDER OUT - Jane Austen's six novels out of Debian's package r-cran-janeaustenr.

FOLDER is the unpacked package (dpkg -x). The text lies in an R data file: entries of a 4-byte
length and a zlib stream, each a serialised R object (XDR) in which a string is the bytes
00 04 00 09, a big-endian length and the characters. R itself is not needed.
Writes one file for each novel into OUT and prints their names.
"""
import pathlib
import struct
import sys
import zlib

NOVELS = {  # first line of the text -> file name
    "SENSE AND SENSIBILITY": "sense_and_sensibility",
    "PRIDE AND PREJUDICE": "pride_and_prejudice",
    "MANSFIELD PARK": "mansfield_park",
    "EMMA": "emma",
    "NORTHANGER ABBEY": "northanger_abbey",
    "PERSUASION": "persuasion",
}
STRING = b"\x00\x04\x00\x09"


def entries(data):
    """The decompressed entries: an entry starts with the length of its contents and a zlib stream."""
    at = 0
    while at + 6 < len(data):
        if data[at + 4] != 0x78:
            raise ValueError(f"no zlib stream at byte {at + 4}")
        stream = zlib.decompressobj()
        yield stream.decompress(data[at + 4:])
        at = len(data) - len(stream.unused_data)


def strings(entry):
    at = entry.find(STRING)
    while at >= 0:
        (length,) = struct.unpack_from(">i", entry, at + 4)
        yield entry[at + 8:at + 8 + length].decode("utf-8") if length > 0 else ""
        at = entry.find(STRING, at + 8 + max(length, 0))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, out = map(pathlib.Path, sys.argv[1:])
    (rdb,) = folder.rglob("Rdata.rdb")
    out.mkdir(parents=True, exist_ok=True)
    found = 0
    for entry in entries(rdb.read_bytes()):
        lines = list(strings(entry))
        title = next((NOVELS[line.strip().upper()] for line in lines[:3]
                      if line.strip().upper() in NOVELS), None)
        if title is None or len(lines) < 1000:
            continue
        path = out / f"{title}.txt"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(path)
        found += 1
    if found != len(NOVELS):
        sys.exit(f"austen.py: found {found} of {len(NOVELS)} novels in {rdb}")


if __name__ == "__main__":
    main()
