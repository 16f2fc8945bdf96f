#!/usr/bin/env python3
"""Writes gpt/unicode_table.h: which code points are letters, numbers or white space.

Usage: scripts/make_unicode.py > gpt/unicode_table.h

Takes the general categories from the module unicodedata2 where it is installed (pick the Unicode
version by the package's version), else from Python's own unicodedata. The version goes into the
table; a newer one classes more code points as letters, so it changes how text splits into tokens.
"""
import sys

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

# The property White_Space (25 code points, unchanged since Unicode 6.3); Python's isspace() differs.
SPACE = {*range(0x9, 0xE), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F,
         0x205F, 0x3000}
OTHER, LETTER, NUMBER, WHITE = range(4)


def code_class(code):
    if code in SPACE:
        return WHITE
    return {"L": LETTER, "N": NUMBER}.get(unicodedata.category(chr(code))[0], OTHER)


def main():
    starts = []
    for code in range(0x110000):
        if not starts or code_class(code) != starts[-1] & 3:
            starts.append(code << 2 | code_class(code))
    out = sys.stdout
    out.write("// unicode_table.h - written by scripts/make_unicode.py; do not edit.\n")
    out.write("// Each entry is (first code point << 2 | class) of a run that lasts to the next entry.\n")
    out.write("// clang-format off\n")
    out.write(f'#define UNICODE_TABLE_VERSION "{unicodedata.unidata_version}"\n')
    out.write(f"static const uint32_t class_runs[{len(starts)}] = {{\n")
    line = "   "
    for start in starts:
        item = f" {start},"
        if len(line) + len(item) > 100:
            out.write(line + "\n")
            line = "   "
        line += item
    out.write(line + "\n};\n// clang-format on\n")


main()
