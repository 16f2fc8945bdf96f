// jsonl.h - the text of one line of a JSON-lines file.
// Strings may hold NUL and lone surrogates, as real dumps do; nothing is built up in memory but the
// one text. Other members are checked and skipped; Python's NaN and Infinity pass as numbers.
#pragma once

#include "gpt/util.h"

// Appends the string member `field` of the object in line[0..n) to out, decoded: \u0000 is a NUL,
// half a surrogate pair is U+FFFD, bytes that are not UTF-8 stay. False with a sentence when the
// line is not one JSON object, or the field is missing, twice there or no string.
bool jsonl_text(const char *line, size_t n, const char *field, Buf *out, Error *err);
