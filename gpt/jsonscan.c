// jsonscan.c - see jsonscan.h. Grammar: RFC 8259.
#include "gpt/jsonscan.h"

#include <string.h>

// Length of the well-formed UTF-8 sequence at p, 0 when there is none (Unicode 15, table 3-7).
static size_t utf8_length(const unsigned char *p, size_t n) {
    unsigned char c = p[0], low = 0x80, high = 0xBF;
    size_t length = c < 0x80 ? 1 : c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;
    if (length == 0 || length > n) return 0;
    if (c == 0xE0) low = 0xA0;
    if (c == 0xED) high = 0x9F;
    if (c == 0xF0) low = 0x90;
    if (c == 0xF4) high = 0x8F;
    for (size_t i = 1; i < length; i++) {
        if (p[i] < low || p[i] > high) return 0;
        low = 0x80;
        high = 0xBF;
    }
    return length;
}

bool json_utf8_valid(const char *text, size_t n) {
    for (size_t at = 0; at < n;) {
        size_t length = utf8_length((const unsigned char *)text + at, n - at);
        if (!length) return false;
        at += length;
    }
    return true;
}

bool json_fail(JsonScan *s, const char *why) {
    if (!s->why) s->why = why;
    return false;
}

// The next byte, or -1 at the end or after a failure.
static int peek(const JsonScan *s) {
    return s->why || s->at >= s->n ? -1 : (unsigned char)s->text[s->at];
}

static void skip_space(JsonScan *s) {
    for (int c = peek(s); c == ' ' || c == '\t' || c == '\n' || c == '\r'; c = peek(s))
        s->at++;
}

bool json_take(JsonScan *s, char c) {
    skip_space(s);
    if (peek(s) != (unsigned char)c) return false;
    s->at++;
    return true;
}

bool json_expect(JsonScan *s, char c, const char *why) {
    return json_take(s, c) || json_fail(s, why);
}

bool json_end(JsonScan *s) {
    skip_space(s);
    return !s->why && (s->at == s->n || json_fail(s, "expected the end of the text"));
}

static bool hex4(JsonScan *s, uint32_t *out) {
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        int c = peek(s);
        uint32_t digit;
        if (c >= '0' && c <= '9')
            digit = (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            digit = (uint32_t)(c - 'a' + 10);
        else if (c >= 'A' && c <= 'F')
            digit = (uint32_t)(c - 'A' + 10);
        else
            return json_fail(s, "expected four hexadecimal digits after \\u");
        v = v << 4 | digit;
        s->at++;
    }
    *out = v;
    return true;
}

static char *utf8_put(char *out, uint32_t c) {
    if (c < 0x80) {
        *out++ = (char)c;
        return out;
    }
    int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    *out++ = (char)(c >> (6 * more) | (0xFF00u >> (more + 1) & 0xFFu));
    while (more--)
        *out++ = (char)(0x80 | (c >> (6 * more) & 0x3F));
    return out;
}

// After "\u": one code unit, or two that form a pair.
static bool unicode_escape(JsonScan *s, char **out) {
    uint32_t c, low;
    if (!hex4(s, &c)) return false;
    if (c == 0) return json_fail(s, "a string holds the character NUL");
    if (c >= 0xDC00 && c < 0xE000) return json_fail(s, "a low surrogate stands alone");
    if (c >= 0xD800 && c < 0xDC00) {
        bool follows = s->n - s->at >= 2 && memcmp(s->text + s->at, "\\u", 2) == 0;
        if (!follows) return json_fail(s, "a high surrogate stands alone");
        s->at += 2;
        if (!hex4(s, &low)) return false;
        if (low < 0xDC00 || low >= 0xE000) return json_fail(s, "a high surrogate stands alone");
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    *out = utf8_put(*out, c);
    return true;
}

static bool escape(JsonScan *s, char **out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    int c = peek(s);
    if (c < 0) return json_fail(s, "a string does not end");
    const char *known = c > 0 ? strchr(from, c) : NULL;
    s->at++;
    if (known)
        *(*out)++ = to[known - from];
    else if (c != 'u')
        return json_fail(s, "an unknown escape in a string");
    return known || unicode_escape(s, out);
}

bool json_string(JsonScan *s, char *out, size_t *length) {
    char *start = out;
    if (!json_expect(s, '"', "expected a string")) return false;
    for (;;) {
        int c = peek(s);
        if (c < 0) return json_fail(s, "a string does not end");
        if (c < 0x20) return json_fail(s, "a control character in a string");
        s->at++;
        if (c == '"') break;
        if (c != '\\')
            *out++ = (char)c;
        else if (!escape(s, &out))
            return false;
    }
    *out = 0;
    if (length) *length = (size_t)(out - start);
    return true;
}

static bool is_digit(int c) {
    return c >= '0' && c <= '9';
}

bool json_u64(JsonScan *s, uint64_t *out) {
    skip_space(s);
    if (peek(s) == '-') return json_fail(s, "expected an integer that is not negative");
    if (!is_digit(peek(s))) return json_fail(s, "expected an integer");
    size_t first = s->at;
    uint64_t v = 0;
    for (int c = peek(s); is_digit(c); c = peek(s)) {
        uint64_t digit = (uint64_t)(c - '0');
        if (v > (UINT64_MAX - digit) / 10) return json_fail(s, "an integer overflows 64 bits");
        v = v * 10 + digit;
        s->at++;
    }
    if (s->text[first] == '0' && s->at - first > 1) return json_fail(s, "a number starts with 0");
    int c = peek(s);
    if (c == '.' || c == 'e' || c == 'E')
        return json_fail(s, "expected an integer, found a fraction");
    *out = v;
    return true;
}

static bool skip_digits(JsonScan *s) {
    if (!is_digit(peek(s))) return json_fail(s, "expected a digit");
    while (is_digit(peek(s)))
        s->at++;
    return true;
}

static bool skip_number(JsonScan *s) {
    if (peek(s) == '-') s->at++;
    size_t first = s->at;
    if (!skip_digits(s)) return false;
    if (s->text[first] == '0' && s->at - first > 1) return json_fail(s, "a number starts with 0");
    if (peek(s) == '.') {
        s->at++;
        if (!skip_digits(s)) return false;
    }
    if (peek(s) != 'e' && peek(s) != 'E') return true;
    s->at++;
    if (peek(s) == '+' || peek(s) == '-') s->at++;
    return skip_digits(s);
}

static bool skip_string(JsonScan *s) {
    // Decoded piece by piece into a scrap, since the length is unbounded.
    char scrap[8];
    if (!json_expect(s, '"', "expected a string")) return false;
    for (;;) {
        int c = peek(s);
        char *out = scrap;
        if (c < 0) return json_fail(s, "a string does not end");
        if (c < 0x20) return json_fail(s, "a control character in a string");
        s->at++;
        if (c == '"') return true;
        if (c == '\\' && !escape(s, &out)) return false;
    }
}

static bool skip_word(JsonScan *s, const char *word) {
    size_t length = strlen(word);
    if (s->n - s->at < length || memcmp(s->text + s->at, word, length) != 0)
        return json_fail(s, "expected a value");
    s->at += length;
    return true;
}

// The inside of an array or object, whose opening bracket has been consumed.
static bool skip_members(JsonScan *s, char close, bool keys, int depth) {
    if (json_take(s, close)) return true;
    do {
        if (keys && !(skip_string(s) && json_expect(s, ':', "expected ':'"))) return false;
        if (!json_skip(s, depth)) return false;
    } while (json_take(s, ','));
    return json_expect(s, close, "expected ',' or the closing bracket");
}

bool json_skip(JsonScan *s, int depth) {
    skip_space(s);
    int c = peek(s);
    if (c == '"') return skip_string(s);
    if (c == '{' || c == '[') {
        if (depth >= JSON_MAX_DEPTH) return json_fail(s, "brackets nest too deeply");
        s->at++;
        return skip_members(s, c == '{' ? '}' : ']', c == '{', depth + 1);
    }
    if (c == 't') return skip_word(s, "true");
    if (c == 'f') return skip_word(s, "false");
    if (c == 'n') return skip_word(s, "null");
    if (c == '-' || is_digit(c)) return skip_number(s);
    return json_fail(s, "expected a value");
}
