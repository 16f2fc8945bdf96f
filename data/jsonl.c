// jsonl.c - see jsonl.h. One pass over the line; brackets nest at most MAX_DEPTH deep.
#include "data/jsonl.h"

#include "gpt/unicode.h"

#include <string.h>

enum { MAX_DEPTH = 200 };

typedef struct Line {
    const char *at, *end;
    const char *why;  // "expected ':'", NULL while all is well
} Line;

static bool fail(Line *l, const char *why) {
    if (!l->why) l->why = why;
    return false;
}

static void skip_space(Line *l) {
    while (l->at < l->end &&
           (*l->at == ' ' || *l->at == '\t' || *l->at == '\n' || *l->at == '\r')) {
        l->at++;
    }
}

static bool take(Line *l, char c) {
    skip_space(l);
    if (l->at == l->end || *l->at != c) return false;
    l->at++;
    return true;
}

// The four digits of \u; -1 when they are not.
static int hex4(Line *l) {
    int v = 0;
    if (l->end - l->at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        char c = *l->at++;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        v = v * 16 + digit;
    }
    return v;
}

static bool unicode_escape(Line *l, Buf *out) {
    int code = hex4(l);
    if (code < 0) return fail(l, "\\u without four hexadecimal digits");
    if (code >= 0xD800 && code < 0xDC00 && l->end - l->at >= 6 && l->at[0] == '\\' &&
        l->at[1] == 'u') {
        Line ahead = *l;
        ahead.at += 2;
        int low = hex4(&ahead);
        if (low >= 0xDC00 && low < 0xE000) {
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
            l->at = ahead.at;
        }
    }
    if (code >= 0xD800 && code < 0xE000) code = 0xFFFD;
    char text[4];
    int n = utf8_encode((uint32_t)code, text);
    if (out) buf_add(out, text, (size_t)n);
    return true;
}

// A string behind its opening quote, decoded into out unless that is NULL.
static bool string(Line *l, Buf *out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    for (;;) {
        const char *start = l->at;
        while (l->at < l->end && *l->at != '"' && *l->at != '\\' && (unsigned char)*l->at >= 32)
            l->at++;
        if (out) buf_add(out, start, (size_t)(l->at - start));
        if (l->at == l->end) return fail(l, "a string that does not end");
        char c = *l->at++;
        if (c == '"') return true;
        if (c != '\\') return fail(l, "a control character in a string");
        if (l->at == l->end) return fail(l, "a string that does not end");
        c = *l->at++;
        const char *known = c ? strchr(from, c) : NULL;
        if (c == 'u') {
            if (!unicode_escape(l, out)) return false;
        } else if (!known) {
            return fail(l, "an unknown escape in a string");
        } else if (out) {
            buf_add(out, to + (known - from), 1);
        }
    }
}

static bool word(Line *l) {
    static const char *const words[] = {"true", "false", "null", "NaN", "Infinity", "-Infinity"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(l->end - l->at) < n || memcmp(l->at, words[i], n)) continue;
        l->at += n;
        return true;
    }
    const char *start = l->at;
    if (l->at < l->end && *l->at == '-') l->at++;
    if (l->at == l->end || *l->at < '0' || *l->at > '9')
        return fail(l, "something that is no value");
    while (l->at < l->end && *l->at && strchr("0123456789+-.eE", *l->at))
        l->at++;
    return l->at - start < 4096 || fail(l, "a number without an end");
}

static bool skip_value(Line *l, int depth);

static bool skip_members(Line *l, char close, int depth) {
    if (take(l, close)) return true;
    do {
        if (close == '}') {
            if (!take(l, '"')) return fail(l, "a member without a name");
            if (!string(l, NULL)) return false;
            if (!take(l, ':')) return fail(l, "a name without ':'");
        }
        if (!skip_value(l, depth)) return false;
    } while (take(l, ','));
    return take(l, close) ||
           fail(l, close == '}' ? "an object that does not end" : "a list that does not end");
}

static bool skip_value(Line *l, int depth) {
    if (depth == MAX_DEPTH) return fail(l, "brackets nested more than 200 deep");
    if (take(l, '{')) return skip_members(l, '}', depth + 1);
    if (take(l, '[')) return skip_members(l, ']', depth + 1);
    if (take(l, '"')) return string(l, NULL);
    return word(l);
}

// One member of the outermost object; *found counts the field.
static bool member(Line *l, const char *field, Buf *name, Buf *out, int *found) {
    name->n = 0;
    if (!take(l, '"')) return fail(l, "a member without a name");
    if (!string(l, name)) return false;
    if (!take(l, ':')) return fail(l, "a name without ':'");
    if (name->n != strlen(field) || (name->n && memcmp(name->text, field, name->n)))
        return skip_value(l, 1);
    if (++*found > 1) return fail(l, "the field twice");
    if (!take(l, '"')) return fail(l, "a field that is not a string");
    return string(l, out);
}

static bool object(Line *l, const char *field, Buf *name, Buf *out, int *found) {
    if (!take(l, '{')) return fail(l, "no object");
    if (!take(l, '}')) {
        do {
            if (!member(l, field, name, out, found)) return false;
        } while (take(l, ','));
        if (!take(l, '}')) return fail(l, "an object that does not end");
    }
    skip_space(l);
    return l->at == l->end || fail(l, "text behind the object");
}

bool jsonl_text(const char *line, size_t n, const char *field, Buf *out, Error *err) {
    Line l = {line, line + n, NULL};
    Buf name = {0};
    int found = 0;
    bool ok = object(&l, field, &name, out, &found);
    buf_free(&name);
    if (!ok) {
        return error_set(err, "not a JSON object with a text '%s': %s at byte %lld", field, l.why,
                         (long long)(l.at - line));
    }
    return found || error_set(err, "the JSON object has no field '%s'", field);
}
