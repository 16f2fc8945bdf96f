// unicode.h - UTF-8 and the three character classes that splitting text into tokens needs.
// No case mapping, no normalisation, no other properties.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum CharClass {
    CHAR_OTHER,   // marks, punctuation, symbols, controls, unassigned, and bytes that are not UTF-8
    CHAR_LETTER,  // L: Lu Ll Lt Lm Lo
    CHAR_NUMBER,  // N: Nd Nl No
    CHAR_SPACE,   // the property White_Space
} CharClass;

#define UTF8_BAD UINT32_MAX

// The version of Unicode that the classes are from, "16.0.0".
const char *unicode_version(void);

// The class of a code point; UTF8_BAD and values above U+10FFFF are CHAR_OTHER.
CharClass unicode_class(uint32_t code);

// Reads one code point from text[0..n), n >= 1, and returns its length in bytes, 1 to 4. A byte
// that starts no well-formed sequence (overlong, surrogate, above U+10FFFF, cut off) is UTF8_BAD of
// length 1, so a reader always advances and never loses a byte.
int utf8_decode(const char *text, size_t n, uint32_t *code);

// Writes a code point below 0x110000 as 1 to 4 bytes and returns how many.
int utf8_encode(uint32_t code, char out[4]);

// How many bytes of text[0..n) can be shown now: all but a sequence at the end that is still
// incomplete. For streams whose tokens end inside a character.
size_t utf8_complete(const char *text, size_t n);

#ifdef __cplusplus
}
#endif
