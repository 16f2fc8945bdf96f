// textout.c - see textout.h.
#include "gpt/textout.h"

#include <string.h>

static const char replacement[] = "\xEF\xBF\xBD";

// Length of the sequence that a lead byte starts; 0 for a byte that starts none.
static size_t sequence_length(unsigned char lead) {
    if (lead < 0x80) return 1;
    if (lead >= 0xC2 && lead <= 0xDF) return 2;
    if (lead >= 0xE0 && lead <= 0xEF) return 3;
    if (lead >= 0xF0 && lead <= 0xF4) return 4;
    return 0;
}

// Whether the second byte fits the lead: no overlong forms, no surrogates, nothing above U+10FFFF.
static bool second_fits(unsigned char lead, unsigned char c) {
    unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    return c >= low && c <= high;
}

// Bytes of the character at p that are right, up to n: *whole says whether it is complete, *broken
// whether it can never be.
static size_t character(const unsigned char *p, size_t n, bool *whole, bool *broken) {
    size_t length = sequence_length(p[0]), i = 1;
    *whole = *broken = false;
    if (length == 0) {
        *broken = true;
        return 1;
    }
    for (; i < length && i < n; i++) {
        bool fits = i == 1 ? second_fits(p[0], p[1]) : (p[i] & 0xC0) == 0x80;
        if (!fits) {
            *broken = true;
            return i;
        }
    }
    *whole = i == length;
    return i;
}

// Moves the first n held bytes to out, broken characters replaced; an unfinished one at the end
// stays unless `all`. Returns how many bytes were taken.
static size_t emit(const Buf *held, size_t n, bool all, Buf *out) {
    const unsigned char *p = (const unsigned char *)held->text;
    size_t i = 0;
    while (i < n) {
        bool whole, broken;
        size_t k = character(p + i, n - i, &whole, &broken);
        if (whole)
            buf_add(out, p + i, k);
        else if (broken || all)
            buf_add(out, replacement, 3);
        else
            break;
        i += k;
    }
    return i;
}

static void drop(Buf *b, size_t n) {
    memmove(b->text, b->text + n, b->n - n);
    b->n -= n;
}

// Start of the earliest stop string in the held bytes, or held.n.
static size_t find_stop(TextOut *t) {
    size_t first = t->held.n;
    for (int s = 0; s < t->n_stop; s++) {
        size_t length = strlen(t->stop[s]);
        for (size_t i = 0; i + length <= t->held.n && i < first; i++) {
            if (memcmp(t->held.text + i, t->stop[s], length) == 0) {
                first = i;
                t->hit = t->stop[s];
            }
        }
    }
    return first;
}

// Longest tail of the held bytes that begins a stop string.
static size_t partial_stop(const TextOut *t) {
    size_t longest = 0;
    for (int s = 0; s < t->n_stop; s++) {
        size_t length = strlen(t->stop[s]);
        for (size_t k = min_size(length - 1, t->held.n); k > longest; k--) {
            if (memcmp(t->held.text + t->held.n - k, t->stop[s], k) == 0) longest = k;
        }
    }
    return longest;
}

bool textout_push(TextOut *t, const char *bytes, size_t n, Buf *out) {
    buf_add(&t->held, bytes, n);
    size_t stop = find_stop(t);
    if (t->hit) {
        emit(&t->held, stop, true, out);
        t->held.n = 0;
        return false;
    }
    drop(&t->held, emit(&t->held, t->held.n - partial_stop(t), false, out));
    return true;
}

void textout_finish(TextOut *t, Buf *out) {
    if (t->held.n) emit(&t->held, t->held.n, true, out);
    t->held.n = 0;
}

void textout_free(TextOut *t) {
    buf_free(&t->held);
}
