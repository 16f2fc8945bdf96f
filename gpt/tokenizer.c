// tokenizer.c - building a Tokenizer and asking it. Encoding is in tokenizer_encode.c and
// tokenizer_merge.c, files in tokenizer_load.c, tokenizer_json.c and tokenizer_save.c.
#include "gpt/tokenizer.h"

#include "gpt/rng.h"
#include "gpt/tokenizer_parts.h"
#include "gpt/unicode.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void token_ids_add(TokenIds *list, int id) {
    if (list->n == list->cap) {
        size_t cap = list->cap ? list->cap * 2 : 64;
        list->ids = mem_grow(list->ids, list->n, cap, sizeof(int));
        list->cap = cap;
    }
    list->ids[list->n++] = id;
}

void token_ids_free(TokenIds *list) {
    mem_free(list->ids);
    *list = (TokenIds){0};
}

// --- The byte alphabet

static bool is_own_character(int byte) {
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

// The byte with GPT-2's id i: first those that are their own character, then the rest.
static int alphabet_byte(int i) {
    for (int pass = 0; pass < 2; pass++) {
        for (int byte = 0; byte < 256; byte++) {
            if (is_own_character(byte) == (pass == 0) && i-- == 0) return byte;
        }
    }
    return -1;
}

static uint32_t alphabet_code(int byte) {
    if (is_own_character(byte)) return (uint32_t)byte;
    return (uint32_t)(byte <= 32 ? 256 + byte : byte < 173 ? 256 + 33 + byte - 127 : 323);
}

void alphabet_write(const char *bytes, size_t n, Buf *out) {
    for (size_t i = 0; i < n; i++) {
        char c[4];
        buf_add(out, c, (size_t)utf8_encode(alphabet_code((unsigned char)bytes[i]), c));
    }
}

static int byte_of_code(uint32_t code) {
    if (code < 256) return is_own_character((int)code) ? (int)code : -1;
    if (code <= 256 + 32) return (int)code - 256;
    if (code < 323) return (int)code - 256 - 33 + 127;
    return code == 323 ? 173 : -1;
}

bool alphabet_read(const char *text, size_t n, Buf *out) {
    for (size_t i = 0; i < n;) {
        uint32_t code;
        i += (size_t)utf8_decode(text + i, n - i, &code);
        int byte = byte_of_code(code);
        if (byte < 0) return false;
        char c = (char)byte;
        buf_add(out, &c, 1);
    }
    return true;
}

// --- Building

Tokenizer *tokenizer_new(SplitKind split, int n_ids) {
    assert(n_ids > 0 && n_ids <= TOKENIZER_MAX_IDS);
    Tokenizer *tok = mem_alloc(1, sizeof *tok);
    size_t n = (size_t)n_ids;
    tok->split = split;
    tok->n_ids = n_ids;
    tok->eot = -1;
    tok->start = mem_alloc(n, sizeof *tok->start);
    tok->len = mem_alloc(n, sizeof *tok->len);
    tok->flags = mem_alloc(n, 1);
    tok->is_whole = mem_alloc(n, sizeof *tok->is_whole);
    size_t slots = 512;
    while (slots < 2 * n)
        slots *= 2;
    tok->by_bytes = mem_alloc(slots, sizeof *tok->by_bytes);
    for (size_t i = 0; i < slots; i++)
        tok->by_bytes[i].id = -1;
    tok->by_bytes_mask = slots - 1;
    for (int b = 0; b < 256; b++)
        tok->byte_id[b] = -1;
    return tok;
}

void tokenizer_free(Tokenizer *tok) {
    if (!tok) return;
    buf_free(&tok->text);
    mem_free(tok->start);
    mem_free(tok->len);
    mem_free(tok->flags);
    mem_free(tok->is_whole);
    mem_free(tok->by_bytes);
    mem_free(tok->pairs);
    mem_free(tok->merges);
    mem_free(tok->added);
    mem_free(tok);
}

// The slot of these bytes, or the empty one where they belong.
static size_t bytes_slot(const Tokenizer *tok, const char *bytes, size_t n, uint32_t *tag) {
    uint64_t h = rng_mix(rng_fnv(RNG_FNV_START, bytes, n));
    *tag = (uint32_t)(h >> 32);
    size_t i = (size_t)h & tok->by_bytes_mask;
    for (;; i = (i + 1) & tok->by_bytes_mask) {
        const BytesSlot *slot = &tok->by_bytes[i];
        if (slot->id < 0) return i;
        if (slot->tag == *tag && (size_t)tok->len[slot->id] == n &&
            !memcmp(tok->text.text + tok->start[slot->id], bytes, n)) {
            return i;
        }
    }
}

int tokenizer_find(const Tokenizer *tok, const char *bytes, size_t n) {
    uint32_t tag;
    return tok->by_bytes[bytes_slot(tok, bytes, n, &tag)].id;
}

bool tokenizer_put(Tokenizer *tok, int id, const char *bytes, size_t n, int flags,
                   const char *where, Error *err) {
    assert(id >= 0 && id < tok->n_ids && n > 0 && n < INT32_MAX);
    if (tok->len[id]) return error_set(err, "%s: two tokens have the id %d", where, id);
    if (flags & TOKEN_MODEL) {
        uint32_t tag;
        size_t slot = bytes_slot(tok, bytes, n, &tag);
        if (tok->by_bytes[slot].id >= 0) {
            return error_set(err, "%s: the tokens %d and %d have the same bytes", where,
                             tok->by_bytes[slot].id, id);
        }
        tok->by_bytes[slot] = (BytesSlot){tag, id};
        tok->longest = max_int(tok->longest, (int)n);
        if (n == 1) tok->byte_id[(unsigned char)bytes[0]] = id;
    }
    tok->start[id] = tok->text.n;
    tok->len[id] = (int)n;
    tok->flags[id] = (uint8_t)flags;
    buf_add(&tok->text, bytes, n);
    return true;
}

void tokenizer_put_bytes(Tokenizer *tok) {
    Error err;
    for (int i = 0; i < 256; i++) {
        char c = (char)alphabet_byte(i);
        if (!tokenizer_put(tok, i, &c, 1, TOKEN_MODEL, "bytes", &err)) die("%s", err.text);
    }
}

typedef struct Length {
    int len, id;
} Length;

static int longer_first(const void *a, const void *b) {
    const Length *x = a, *y = b;
    return x->len != y->len ? (x->len < y->len) - (x->len > y->len)
                            : (x->id > y->id) - (x->id < y->id);
}

static void list_added(Tokenizer *tok) {
    for (int id = 0; id < tok->n_ids; id++)
        tok->n_added += (tok->flags[id] & TOKEN_ADDED) != 0;
    Length *order = mem_alloc((size_t)tok->n_added, sizeof *order);
    int n = 0;
    for (int id = 0; id < tok->n_ids; id++) {
        if (!(tok->flags[id] & TOKEN_ADDED)) continue;
        order[n++] = (Length){tok->len[id], id};
        tok->starts[(unsigned char)tok->text.text[tok->start[id]]] |=
            tok->flags[id] & TOKEN_SPECIAL ? TOKEN_SPECIAL : TOKEN_ADDED;
        if (!(tok->flags[id] & TOKEN_SPECIAL)) tok->has_plain_added = true;
    }
    qsort(order, (size_t)n, sizeof *order, longer_first);
    tok->added = mem_alloc((size_t)n, sizeof *tok->added);
    for (int i = 0; i < n; i++)
        tok->added[i] = order[i].id;
    mem_free(order);
    static const char *const ends[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<|bos|>"};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0] && tok->eot < 0; i++) {
        tok->eot = tokenizer_special(tok, ends[i]);
    }
}

// Which tokens come out of their own bytes; such pieces need no merging.
static void find_whole(Tokenizer *tok) {
    MergeScratch scratch = {0};
    TokenIds ids = {0};
    for (int id = 0; id < tok->n_ids; id++) {
        if (!(tok->flags[id] & TOKEN_MODEL)) continue;
        ids.n = 0;
        if (!tok->ignore_merges) {
            tokenizer_merge_piece(tok, tok->text.text + tok->start[id], (size_t)tok->len[id],
                                  &scratch, &ids);
        }
        tok->is_whole[id] = tok->ignore_merges || (ids.n == 1 && ids.ids[0] == id);
    }
    token_ids_free(&ids);
    merge_scratch_free(&scratch);
}

static uint64_t hash_int(uint64_t h, int64_t v) {
    unsigned char b[8];  // little-endian on every machine
    for (int i = 0; i < 8; i++)
        b[i] = (unsigned char)((uint64_t)v >> (8 * i));
    return rng_fnv(h, b, sizeof b);
}

static uint64_t hash_all(const Tokenizer *tok) {
    uint64_t h = hash_int(RNG_FNV_START, tok->n_ids);
    for (const char *s = split_name(tok->split); *s; s++)
        h = rng_fnv(h, s, 1);
    h = hash_int(h, tok->ignore_merges);
    for (int id = 0; id < tok->n_ids; id++) {
        h = hash_int(h, (int64_t)tok->len[id] << 8 | tok->flags[id]);
        h = rng_fnv(h, tok->text.text + tok->start[id], (size_t)tok->len[id]);
    }
    for (int i = 0; i < tok->n_merges; i++) {
        h = hash_int(hash_int(h, tok->merges[i].left), tok->merges[i].right);
    }
    return rng_mix(h);
}

Tokenizer *tokenizer_finish(Tokenizer *tok, Merge *merges, int n_merges, const char *where,
                            Error *err) {
    tok->merges = merges;
    tok->n_merges = n_merges;
    tokenizer_pairs_alloc(tok, n_merges);
    bool ok = true;
    for (int b = 0; ok && b < 256; b++) {
        if (tok->byte_id[b] < 0) ok = error_set(err, "%s: no token for the byte 0x%02X", where, b);
    }
    for (int i = 0; ok && i < n_merges; i++) {
        if (tokenizer_pair_add(tok, i)) continue;
        ok = error_set(err, "%s: merge %d repeats an earlier one", where, i + 1);
    }
    if (!ok) {
        tokenizer_free(tok);
        return NULL;
    }
    list_added(tok);
    find_whole(tok);
    tok->hash = hash_all(tok);
    return tok;
}

// --- Asking

const char *tokenizer_bytes(const Tokenizer *tok, int id, size_t *len) {
    bool known = id >= 0 && id < tok->n_ids && tok->len[id];
    *len = known ? (size_t)tok->len[id] : 0;
    return known ? tok->text.text + tok->start[id] : "";
}

int tokenizer_n_ids(const Tokenizer *tok) {
    return tok->n_ids;
}
int tokenizer_eot(const Tokenizer *tok) {
    return tok->eot;
}
SplitKind tokenizer_split(const Tokenizer *tok) {
    return tok->split;
}
uint64_t tokenizer_hash(const Tokenizer *tok) {
    return tok->hash;
}

int tokenizer_special(const Tokenizer *tok, const char *text) {
    size_t n = strlen(text);
    for (int i = 0; i < tok->n_added; i++) {
        int id = tok->added[i];
        if ((size_t)tok->len[id] == n && !memcmp(tok->text.text + tok->start[id], text, n))
            return id;
    }
    return -1;
}

bool tokenizer_is_special(const Tokenizer *tok, int id) {
    return id >= 0 && id < tok->n_ids && (tok->flags[id] & TOKEN_SPECIAL);
}
