// tokenizer_encode.c - text to ids: added tokens first, then pieces, then merges inside a piece.
#include "gpt/tokenizer.h"
#include "gpt/tokenizer_parts.h"

#include <assert.h>
#include <string.h>

// A walk over the pieces of text[0..n). Between two added tokens the text is split as if it stood
// alone.
typedef struct Walk {
    const Tokenizer *tok;
    const char *text;
    size_t n, pos;
    size_t seen;  // bytes of text to look for added tokens in, n or more
    bool parse_special;
    size_t added_at;  // the next added token at or after pos, n when there is none
    int added_id;
} Walk;

// The longest added token that starts at text[pos], or -1.
static int added_here(const Walk *w, size_t pos) {
    const Tokenizer *tok = w->tok;
    for (int i = 0; i < tok->n_added; i++) {
        int id = tok->added[i];
        size_t len = (size_t)tok->len[id];
        if ((tok->flags[id] & TOKEN_SPECIAL) && !w->parse_special) continue;
        if (len <= w->seen - pos && !memcmp(w->text + pos, tok->text.text + tok->start[id], len))
            return id;
    }
    return -1;
}

static void find_added(Walk *w) {
    w->added_at = w->n;
    if (!w->parse_special && !w->tok->has_plain_added) return;
    int wanted = w->parse_special ? TOKEN_ADDED | TOKEN_SPECIAL : TOKEN_ADDED;
    for (size_t i = w->pos; i < w->n; i++) {
        if (!(w->tok->starts[(unsigned char)w->text[i]] & wanted)) continue;
        w->added_id = added_here(w, i);
        if (w->added_id < 0) continue;
        w->added_at = i;
        return;
    }
}

static Walk walk_start(const Tokenizer *tok, const char *text, size_t n, bool parse_special) {
    Walk w = {.tok = tok,
              .text = text,
              .n = n,
              .seen = n,
              .parse_special = parse_special,
              .added_id = -1};
    find_added(&w);
    return w;
}

// Moves over one piece or added token and returns its length; *id is -1 for a piece. *hit_end is
// set when text after n could change it.
static size_t walk_next(Walk *w, int *id, bool *hit_end) {
    size_t from = w->pos;
    if (from == w->added_at) {
        *id = w->added_id;
        w->pos += (size_t)w->tok->len[*id];
        find_added(w);
    } else {
        *id = -1;
        bool hit = false;
        w->pos = split_next(w->tok->split, w->text, w->added_at, from, &hit);
        if (hit && w->added_at == w->n) *hit_end = true;
    }
    return w->pos - from;
}

static void encode(const Tokenizer *tok, Walk w, size_t end, TokenIds *out) {
    MergeScratch scratch = {0};
    bool hit_end = false;
    while (w.pos < end) {
        int id;
        const char *piece = w.text + w.pos;
        size_t len = walk_next(&w, &id, &hit_end);
        if (id < 0 && len <= (size_t)tok->longest) {
            id = tokenizer_find(tok, piece, len);
            if (id >= 0 && !tok->is_whole[id]) id = -1;
        }
        if (id >= 0)
            token_ids_add(out, id);
        else
            tokenizer_merge_piece(tok, piece, len, &scratch, out);
    }
    merge_scratch_free(&scratch);
}

void tokenizer_encode_to(const Tokenizer *tok, const char *text, size_t n, bool parse_special,
                         TokenIds *out) {
    encode(tok, walk_start(tok, text, n, parse_special), n, out);
}

void tokenizer_encode(const Tokenizer *tok, const char *text, size_t n, bool parse_special,
                      int **ids, size_t *n_ids) {
    TokenIds out = {0};
    tokenizer_encode_to(tok, text, n, parse_special, &out);
    *ids = out.ids ? out.ids : mem_alloc(1, sizeof **ids);
    *n_ids = out.n;
}

void tokenizer_encode_part(const Tokenizer *tok, const char *text, size_t n, size_t end,
                           TokenIds *out) {
    assert(end <= n);
    encode(tok, walk_start(tok, text, n, false), end, out);
}

// --- Places to cut

// Whether an added token, complete or as far as the text goes, lies across p.
static bool added_across(const Tokenizer *tok, const char *text, size_t n, size_t p) {
    for (int i = 0; tok->has_plain_added && i < tok->n_added; i++) {
        int id = tok->added[i];
        if (tok->flags[id] & TOKEN_SPECIAL) continue;
        const char *bytes = tok->text.text + tok->start[id];
        size_t len = (size_t)tok->len[id];
        for (size_t before = 1; before < len && before <= p; before++) {
            size_t seen = min_size(len, n - (p - before));
            if (!memcmp(text + p - before, bytes, seen)) return true;
        }
    }
    return false;
}

size_t tokenizer_cut(const Tokenizer *tok, const char *text, size_t n, size_t target) {
    // In every kind of splitting no piece has a space behind a printable ASCII character, whatever
    // stands before or after the two.
    for (size_t p = min_size(target, n ? n - 1 : 0); p > target / 2; p--) {
        if (text[p] == ' ' && text[p - 1] > ' ' && text[p - 1] < 0x7F &&
            !added_across(tok, text, n, p)) {
            return p;
        }
    }
    size_t best = 0;
    bool hit_end = false;
    // An added token that the end of the text may have cut off must not count as seen.
    size_t unsure = tok->has_plain_added ? (size_t)tok->len[tok->added[0]] - 1 : 0;
    Walk w = walk_start(tok, text, n, false);
    w.n = n - min_size(n, unsure);
    if (w.added_at > w.n) w.added_at = w.n;
    while (w.pos < w.n && (w.pos <= target || !best)) {
        int id;
        walk_next(&w, &id, &hit_end);
        if (hit_end) break;
        if ((w.pos <= target || !best) && !added_across(tok, text, n, w.pos)) best = w.pos;
    }
    return best;
}
