// unicode.c - see unicode.h. The classes are one sorted table of runs, searched by halves.
#include "gpt/unicode.h"

#include "gpt/unicode_table.h"

const char *unicode_version(void) {
    return UNICODE_TABLE_VERSION;
}

CharClass unicode_class(uint32_t code) {
    if (code > 0x10FFFF) return CHAR_OTHER;
    // The last run that starts at or before the code: its start is class_runs[i] >> 2.
    size_t low = 0, high = sizeof class_runs / sizeof class_runs[0];
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (class_runs[middle] >> 2 <= code)
            low = middle;
        else
            high = middle;
    }
    return (CharClass)(class_runs[low] & 3);
}

int utf8_decode(const char *text, size_t n, uint32_t *code) {
    const unsigned char *s = (const unsigned char *)text;
    uint32_t c = s[0];
    if (c < 0x80) {
        *code = c;
        return 1;
    }
    *code = UTF8_BAD;
    int len = c >= 0xC2 && c <= 0xDF   ? 2
              : c >= 0xE0 && c <= 0xEF ? 3
              : c >= 0xF0 && c <= 0xF4 ? 4
                                       : 1;
    if (len == 1 || (size_t)len > n) return 1;
    c &= 0x7Fu >> len;
    for (int i = 1; i < len; i++) {
        if ((s[i] & 0xC0) != 0x80) return 1;
        c = c << 6 | (s[i] & 0x3Fu);
    }
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (c < smallest[len] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) return 1;
    *code = c;
    return len;
}

int utf8_encode(uint32_t code, char out[4]) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    int len = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = len - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3F));
    out[0] = (char)((0xF00u >> len & 0xF0) | code);
    return len;
}

size_t utf8_complete(const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned c = s[n - back];
        if ((c & 0xC0) == 0x80) continue;
        size_t len = c >= 0xC2 && c <= 0xDF   ? 2
                     : c >= 0xE0 && c <= 0xEF ? 3
                     : c >= 0xF0 && c <= 0xF4 ? 4
                                              : 1;
        return back < len ? n - back : n;
    }
    return n;
}
