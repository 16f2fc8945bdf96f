// bpe_train.c - see bpe_train.h.
//
// The distinct pieces lie one after another in one array of symbols, linked so that merging two of
// them is one step. Every pair of neighbours knows its count and the places where it stood when it
// was entered; a place whose symbols have changed since is passed over. A heap holds (count, pair);
// once entered, counts only fall, so an entry with a stale count is put back with the new one. A
// merge costs as much as it has places, however long the pieces are.
#include "gpt/bpe_train.h"

#include "gpt/bpe_words.h"
#include "gpt/rng.h"
#include "gpt/tokenizer_parts.h"

#include <assert.h>
#include <string.h>

enum { MOST_BYTES = 1 << 29 };  // of distinct pieces: places are ints

typedef struct Pair {
    int left, right;
    int64_t count;
    int *places;  // (n_places) index of the left symbol
    int n_places, cap;
    int stamp;  // the last merge that raised the count
} Pair;

typedef struct HeapItem {
    int64_t count;
    int pair;
} HeapItem;

typedef struct Learner {
    Tokenizer *tok;
    int *sym, *next, *prev;  // (n_sym) next and prev are -1 at a piece's ends; sym is -1 when gone
    int64_t *count;          // (n_sym) how often the symbol's piece stands in the text
    int n_sym;

    Pair *pairs;
    int n_pairs, pairs_cap;
    int *slots;  // (mask + 1) index into pairs, -1 empty
    size_t mask;

    HeapItem *heap;
    size_t heap_n, heap_cap;

    int *raised;  // pairs whose count the present merge has raised
    int n_raised, raised_cap;

    Merge *merges;
    int n_merges;
} Learner;

// Room for one more; the capacity doubles.
#define RESERVE(array, n, cap)                                                                     \
    do {                                                                                           \
        if ((n) == (cap)) {                                                                        \
            (array) =                                                                              \
                mem_grow((array), (size_t)(n), (cap) ? 2 * (size_t)(cap) : 16, sizeof *(array));   \
            (cap) = (cap) ? 2 * (cap) : 16;                                                        \
        }                                                                                          \
    } while (0)

static size_t pair_place(const Learner *l, int left, int right) {
    size_t i = (size_t)rng_mix((uint64_t)(unsigned)left << 32 | (unsigned)right) & l->mask;
    while (l->slots[i] >= 0) {
        const Pair *p = &l->pairs[l->slots[i]];
        if (p->left == left && p->right == right) break;
        i = (i + 1) & l->mask;
    }
    return i;
}

static void slots_alloc(Learner *l, size_t n) {
    mem_free(l->slots);
    l->slots = mem_alloc(n, sizeof *l->slots);
    l->mask = n - 1;
    for (size_t i = 0; i < n; i++)
        l->slots[i] = -1;
    for (int p = 0; p < l->n_pairs; p++)
        l->slots[pair_place(l, l->pairs[p].left, l->pairs[p].right)] = p;
}

static int pair_of(Learner *l, int left, int right) {
    size_t i = pair_place(l, left, right);
    if (l->slots[i] >= 0) return l->slots[i];
    RESERVE(l->pairs, l->n_pairs, l->pairs_cap);
    int p = l->n_pairs++;
    l->pairs[p] = (Pair){.left = left, .right = right, .stamp = -1};
    l->slots[i] = p;
    if ((size_t)l->n_pairs > l->mask / 2) slots_alloc(l, 2 * (l->mask + 1));
    return p;
}

static void pair_raise(Learner *l, int left, int right, int64_t by, int place) {
    int p = pair_of(l, left, right);
    Pair *pair = &l->pairs[p];
    pair->count += by;
    RESERVE(pair->places, pair->n_places, pair->cap);
    pair->places[pair->n_places++] = place;
    if (pair->stamp == l->n_merges) return;
    pair->stamp = l->n_merges;
    RESERVE(l->raised, l->n_raised, l->raised_cap);
    l->raised[l->n_raised++] = p;
}

static void pair_lower(Learner *l, int left, int right, int64_t by) {
    int p = l->slots[pair_place(l, left, right)];
    assert(p >= 0 && l->pairs[p].count >= by);
    l->pairs[p].count -= by;
}

// --- The order of merges

static int compare_tokens(const Tokenizer *tok, int a, int b) {
    size_t n_a, n_b;
    const char *bytes_a = tokenizer_bytes(tok, a, &n_a), *bytes_b = tokenizer_bytes(tok, b, &n_b);
    int order = memcmp(bytes_a, bytes_b, min_size(n_a, n_b));
    return order ? order : (n_a > n_b) - (n_a < n_b);
}

// Whether x merges before y.
static bool goes_first(const Learner *l, HeapItem x, HeapItem y) {
    if (x.count != y.count) return x.count > y.count;
    const Pair *a = &l->pairs[x.pair], *b = &l->pairs[y.pair];
    int order = a->left == b->left ? 0 : compare_tokens(l->tok, a->left, b->left);
    return (order ? order : compare_tokens(l->tok, a->right, b->right)) > 0;
}

static void heap_push(Learner *l, HeapItem item) {
    RESERVE(l->heap, l->heap_n, l->heap_cap);
    size_t i = l->heap_n++;
    for (; i > 0 && goes_first(l, item, l->heap[(i - 1) / 2]); i = (i - 1) / 2) {
        l->heap[i] = l->heap[(i - 1) / 2];
    }
    l->heap[i] = item;
}

static HeapItem heap_pop(Learner *l) {
    HeapItem top = l->heap[0], item = l->heap[--l->heap_n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < l->heap_n; i = child) {
        if (child + 1 < l->heap_n && goes_first(l, l->heap[child + 1], l->heap[child])) child++;
        if (!goes_first(l, l->heap[child], item)) break;
        l->heap[i] = l->heap[child];
    }
    l->heap[i] = item;
    return top;
}

static void push_raised(Learner *l) {
    for (int i = 0; i < l->n_raised; i++) {
        heap_push(l, (HeapItem){l->pairs[l->raised[i]].count, l->raised[i]});
    }
    l->n_raised = 0;
}

// The pair to merge now, or -1 when none is left.
static int best_pair(Learner *l) {
    while (l->heap_n > 0) {
        HeapItem top = heap_pop(l);
        int64_t now = l->pairs[top.pair].count;
        if (now == top.count && now > 0) return top.pair;
        if (now > 0) heap_push(l, (HeapItem){now, top.pair});
    }
    return -1;
}

// --- One merge

static void merge_at(Learner *l, int at, int left, int right, int out) {
    int gone = l->next[at];
    if (l->sym[at] != left || gone < 0 || l->sym[gone] != right) return;
    int before = l->prev[at], after = l->next[gone];
    int64_t count = l->count[at];
    pair_lower(l, left, right, count);
    if (before >= 0) {
        pair_lower(l, l->sym[before], left, count);
        pair_raise(l, l->sym[before], out, count, before);
    }
    if (after >= 0) {
        pair_lower(l, right, l->sym[after], count);
        pair_raise(l, out, l->sym[after], count, at);
        l->prev[after] = at;
    }
    l->sym[at] = out;
    l->sym[gone] = -1;
    l->next[at] = after;
}

// Runs of one symbol merge from the left: a pair's places all come from one step, upwards.
static void merge_everywhere(Learner *l, int pair, int out) {
    int left = l->pairs[pair].left, right = l->pairs[pair].right, n = l->pairs[pair].n_places;
    int *places = l->pairs[pair].places;
    l->pairs[pair].places = NULL;
    l->pairs[pair].n_places = l->pairs[pair].cap = 0;
    for (int i = 0; i < n; i++)
        merge_at(l, places[i], left, right, out);
    mem_free(places);
    assert(l->pairs[pair].count == 0);
}

// --- Start and end

static bool learner_start(Learner *l, const BpeTrainer *tr, Error *err) {
    if (tr->text.n > MOST_BYTES) {
        return error_set(err,
                         "the text for learning a tokenizer has %zu bytes of distinct pieces, at "
                         "most %d can be taken; use less text",
                         tr->text.n, MOST_BYTES);
    }
    size_t n = tr->text.n;
    l->n_sym = (int)n;
    l->sym = mem_alloc(n, sizeof *l->sym);
    l->next = mem_alloc(n, sizeof *l->next);
    l->prev = mem_alloc(n, sizeof *l->prev);
    l->count = mem_alloc(n, sizeof *l->count);
    slots_alloc(l, 1 << 16);
    for (size_t k = 0; k <= tr->mask; k++) {
        const Word *w = &tr->words[k];
        for (int i = 0; i < w->len; i++) {
            size_t at = w->start + (size_t)i;
            l->sym[at] = l->tok->byte_id[(unsigned char)tr->text.text[at]];
            l->next[at] = i + 1 < w->len ? (int)at + 1 : -1;
            l->prev[at] = i ? (int)at - 1 : -1;
            l->count[at] = w->count;
        }
    }
    for (int at = 0; at < l->n_sym; at++) {
        if (l->next[at] >= 0) pair_raise(l, l->sym[at], l->sym[at + 1], l->count[at], at);
    }
    push_raised(l);
    return true;
}

static void learner_free(Learner *l) {
    for (int p = 0; p < l->n_pairs; p++)
        mem_free(l->pairs[p].places);
    mem_free(l->sym);
    mem_free(l->next);
    mem_free(l->prev);
    mem_free(l->count);
    mem_free(l->pairs);
    mem_free(l->slots);
    mem_free(l->heap);
    mem_free(l->raised);
}

// Makes the token with the bytes of both. There is none yet: inside a stretch of text whose ends
// are never merged across, every step is decided by the stretch alone, so equal bytes always come
// together by the same last merge.
static void put_joined(Tokenizer *tok, Merge m) {
    Buf b = {0};
    Error err;
    for (int k = 0; k < 2; k++) {
        size_t n;
        const char *bytes = tokenizer_bytes(tok, k ? m.right : m.left, &n);
        buf_add(&b, bytes, n);
    }
    if (!tokenizer_put(tok, m.out, b.text, b.n, TOKEN_MODEL, "training", &err)) die("%s", err.text);
    buf_free(&b);
}

static bool learn_merges(Learner *l, int n_ids, size_t bytes, Error *err) {
    for (int id = 256; id < n_ids - 1; id++) {
        int pair = best_pair(l);
        if (pair < 0) {
            return error_set(
                err,
                "%zu bytes of text hold pairs for %d ids only, %d were asked for; give more text "
                "or ask for fewer",
                bytes, id + 1, n_ids);
        }
        Merge m = {l->pairs[pair].left, l->pairs[pair].right, id};
        put_joined(l->tok, m);
        l->merges[l->n_merges++] = m;
        merge_everywhere(l, pair, m.out);
        push_raised(l);
    }
    return true;
}

Tokenizer *bpe_trainer_learn(const BpeTrainer *tr, int n_ids, Error *err) {
    if (n_ids < 257 || n_ids > TOKENIZER_MAX_IDS) {
        error_set(
            err,
            "a tokenizer of %d ids was asked for, expected 257 (bytes and <|endoftext|>) to %d",
            n_ids, TOKENIZER_MAX_IDS);
        return NULL;
    }
    static const char end[] = "<|endoftext|>";
    Tokenizer *tok = tokenizer_new(tr->split, n_ids);
    Learner l = {.tok = tok, .merges = mem_alloc((size_t)n_ids, sizeof *l.merges)};
    tokenizer_put_bytes(tok);
    bool ok = learner_start(&l, tr, err) && learn_merges(&l, n_ids, tr->bytes, err) &&
              tokenizer_put(tok, n_ids - 1, end, sizeof end - 1, TOKEN_ADDED | TOKEN_SPECIAL,
                            "training", err);
    learner_free(&l);
    if (ok) return tokenizer_finish(tok, l.merges, l.n_merges, "training", err);
    mem_free(l.merges);
    tokenizer_free(tok);
    return NULL;
}

Tokenizer *tokenizer_train(SplitKind split, const char *text, size_t n, int n_ids, Error *err) {
    BpeTrainer *tr = bpe_trainer_new(split);
    bpe_trainer_add(tr, text, n, n);
    Tokenizer *tok = bpe_trainer_learn(tr, n_ids, err);
    bpe_trainer_free(tr);
    return tok;
}
