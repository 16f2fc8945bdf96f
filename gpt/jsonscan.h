// jsonscan.h - a bounded cursor over JSON text that nobody has checked yet.
// It never reads past the end, never allocates, needs no terminating NUL and bounds its recursion.
// For files of strangers with exact 64-bit integers; trusted settings go through cJSON. The first
// failure is remembered in `why` and `at`; every later call fails too.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { JSON_MAX_DEPTH = 16 };

typedef struct JsonScan {
    const char *text;
    size_t n, at;     // length and position in bytes
    const char *why;  // "expected ':'", or NULL while all is well
} JsonScan;

// Well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF.
bool json_utf8_valid(const char *text, size_t n);

// Records the first failure; returns false.
bool json_fail(JsonScan *s, const char *why);
// Skips white space; true when the next character is c, which is then consumed.
bool json_take(JsonScan *s, char c);
// The same, but its absence is the failure `why`.
bool json_expect(JsonScan *s, char c, const char *why);
// White space and nothing else up to the end.
bool json_end(JsonScan *s);
// A string, decoded into out with a NUL behind it, never longer than its own text in the file: room
// for n - at bytes suffices. Control characters, lone surrogates and \u0000 are failures.
bool json_string(JsonScan *s, char *out, size_t *length);
// A non-negative integer below 2^64.
bool json_u64(JsonScan *s, uint64_t *out);
// Any value, checked and skipped; depth counts the brackets already open.
bool json_skip(JsonScan *s, int depth);
