// split.c - see split.h.
//
// GPT-2:  's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// GPT-4:  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}
//         | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
// The first alternative that matches wins. Each is one or two runs of a class, so the first
// character and the one after it decide; only a run of white space needs its end to be known.
#include "gpt/split.h"

#include "gpt/unicode.h"

#include <string.h>

typedef struct Text {
    const char *s;
    size_t n;
    bool hit_end;
} Text;

enum { CHAR_END = 4 };  // one more class: past the end of the text

typedef struct Char {
    unsigned code;
    int len, class;
} Char;

static Char wide_char_at(Text *t, size_t i) {
    Char c = {.class = CHAR_END};
    if (i >= t->n) {
        t->hit_end = true;
        return c;
    }
    c.len = utf8_decode(t->s + i, t->n - i, &c.code);
    if (c.code == UTF8_BAD && t->n - i < 4)
        t->hit_end = true;  // it may be the start of a character
    c.class = unicode_class(c.code);
    return c;
}

static inline Char char_at(Text *t, size_t i) {
    if (i >= t->n || (unsigned char)t->s[i] >= 0x80) return wide_char_at(t, i);
    unsigned a = (unsigned char)t->s[i];
    int class = CHAR_OTHER;
    if ((a | 32) >= 'a' && (a | 32) <= 'z')
        class = CHAR_LETTER;
    else if (a == ' ' || (a >= 9 && a <= 13))
        class = CHAR_SPACE;
    else if (a >= '0' && a <= '9')
        class = CHAR_NUMBER;
    return (Char){a, 1, class};
}

// The end of the run of a class that starts at i.
static size_t run_end(Text *t, size_t i, int class) {
    size_t limit = i + SPLIT_LONGEST_RUN;
    while (i < limit) {
        Char c = char_at(t, i);
        if (c.class != class) break;
        i += (size_t)c.len;
    }
    return i;
}

// The length of 's 't 'm 'd 're 've 'll at i, where a ' stands; 0 when none does.
static size_t contraction(Text *t, size_t i, bool any_case) {
    Char a = char_at(t, i + 1);
    if (any_case && a.code == 0x17F) return 1 + (size_t)a.len;  // long s folds to s
    if (a.class != CHAR_LETTER || a.code > 'z') return 0;
    unsigned first = any_case ? a.code | 32 : a.code;
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    if (first != 'r' && first != 'v' && first != 'l') return 0;
    unsigned second = char_at(t, i + 2).code;
    if (any_case && second >= 'A' && second <= 'Z') second |= 32;
    return second == (first == 'l' ? 'l' : 'e') ? 3 : 0;
}

// White space from i on. With by_lines the run ends after its last line break, if it has one. A
// run before other text leaves its last character to the next piece, if it has two or more.
static size_t space_end(Text *t, size_t i, bool by_lines) {
    size_t j = i, last = i, after_break = i, limit = i + SPLIT_LONGEST_RUN;
    Char c = char_at(t, j);
    while (c.class == CHAR_SPACE && j < limit) {
        last = j;
        j += (size_t)c.len;
        if (c.code == '\n' || c.code == '\r') after_break = j;
        c = char_at(t, j);
    }
    if (by_lines && after_break > i) return after_break;
    if (c.class == CHAR_END || c.class == CHAR_SPACE || last == i) return j;
    return last;
}

static size_t gpt2_next(Text *t, size_t i) {
    Char c = char_at(t, i);
    if (c.code == '\'') {
        size_t len = contraction(t, i, false);
        if (len) return i + len;
    }
    if (c.code == ' ') {
        Char next = char_at(t, i + 1);
        if (next.class != CHAR_SPACE && next.class != CHAR_END)
            return run_end(t, i + 1, next.class);
    }
    return c.class == CHAR_SPACE ? space_end(t, i, false) : run_end(t, i, c.class);
}

static size_t numbers_end(Text *t, size_t i, int most) {
    for (int k = 0; k < most; k++) {
        Char c = char_at(t, i);
        if (c.class != CHAR_NUMBER) break;
        i += (size_t)c.len;
    }
    return i;
}

static size_t symbols_end(Text *t, size_t i) {
    i = run_end(t, i, CHAR_OTHER);
    for (size_t limit = i + SPLIT_LONGEST_RUN; i < limit; i++) {
        unsigned code = char_at(t, i).code;
        if (code != '\r' && code != '\n') break;
    }
    return i;
}

static size_t gpt4_next(Text *t, size_t i, int digits) {
    Char c = char_at(t, i);
    if (c.code == '\'') {
        size_t len = contraction(t, i, true);
        if (len) return i + len;
    }
    if (c.class == CHAR_LETTER) return run_end(t, i, CHAR_LETTER);
    if (c.class == CHAR_NUMBER) return numbers_end(t, i, digits);
    if (c.code != '\r' && c.code != '\n') {
        Char next = char_at(t, i + (size_t)c.len);
        if (next.class == CHAR_LETTER) return run_end(t, i + (size_t)c.len, CHAR_LETTER);
        if (c.code == ' ' && next.class == CHAR_OTHER) return symbols_end(t, i + 1);
    }
    return c.class == CHAR_OTHER ? symbols_end(t, i) : space_end(t, i, true);
}

size_t split_next(SplitKind kind, const char *text, size_t n, size_t pos, bool *hit_end) {
    Text t = {text, n, false};
    size_t end = kind == SPLIT_GPT2   ? gpt2_next(&t, pos)
                 : kind == SPLIT_GPT4 ? gpt4_next(&t, pos, 3)
                                      : gpt4_next(&t, pos, kind == SPLIT_GPT4_DIGITS2 ? 2 : 1);
    if (hit_end && t.hit_end) *hit_end = true;
    return end;
}

// --- Names

#define GPT2_TAIL "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define GPT4_REGEX(digits)                                                                         \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits                     \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct {
    SplitKind kind;
    const char *regex;
} regexes[] = {
  // The first of a kind is the one that is written.
    {SPLIT_GPT2,         "'s|'t|'re|'ve|'m|'ll|'d" GPT2_TAIL},
    {SPLIT_GPT2,         "'(?:[sdmt]|ll|ve|re)" GPT2_TAIL   },
    {SPLIT_GPT2,         "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++"
                 "|\\s++$|\\s+(?!\\S)|\\s"  },
    {SPLIT_GPT4,         GPT4_REGEX("{1,3}")                },
    {SPLIT_GPT4_DIGITS2, GPT4_REGEX("{1,2}")                },
    {SPLIT_GPT4_DIGITS1, GPT4_REGEX("")                     },
    {SPLIT_GPT4_DIGITS1, GPT4_REGEX("{1}")                  },
};

static const char *const names[SPLIT_KINDS] = {"gpt2", "gpt4", "gpt4-digits2", "gpt4-digits1"};

const char *split_name(SplitKind kind) {
    return names[kind];
}

bool split_from_name(const char *name, SplitKind *kind) {
    for (int i = 0; i < SPLIT_KINDS; i++) {
        if (strcmp(name, names[i])) continue;
        *kind = (SplitKind)i;
        return true;
    }
    return false;
}

const char *split_regex(SplitKind kind) {
    for (size_t i = 0;; i++) {
        if (regexes[i].kind == kind) return regexes[i].regex;
    }
}

bool split_from_regex(const char *regex, SplitKind *kind) {
    for (size_t i = 0; i < sizeof regexes / sizeof regexes[0]; i++) {
        if (strcmp(regex, regexes[i].regex)) continue;
        *kind = regexes[i].kind;
        return true;
    }
    return false;
}
