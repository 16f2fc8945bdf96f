// tokenizer_merge.c - byte-pair merging of one piece: always the pair with the lowest rank, the
// leftmost of equals. Short pieces scan all pairs for it; long ones keep the pairs in a heap, so
// that a million equal letters cost n log n.
#include "gpt/rng.h"
#include "gpt/tokenizer_parts.h"

#include <limits.h>
#include <string.h>

enum { SHORT_PIECE = 48, NO_RANK = INT_MAX };

void merge_scratch_free(MergeScratch *s) {
    mem_free(s->ids);
    mem_free(s->next);
    mem_free(s->prev);
    mem_free(s->rank);
    mem_free(s->heap);
    *s = (MergeScratch){0};
}

// --- The table of pairs

void tokenizer_pairs_alloc(Tokenizer *tok, int n_merges) {
    size_t slots = 64;
    while (slots < 2 * (size_t)n_merges)
        slots *= 2;
    mem_free(tok->pairs);
    tok->pairs = mem_alloc(slots, sizeof *tok->pairs);
    for (size_t i = 0; i < slots; i++)
        tok->pairs[i].right = -1;
    tok->pair_mask = slots - 1;
}

// The slot of a pair, or the empty one where it belongs.
static inline PairSlot *pair_slot(const Tokenizer *tok, int left, int right) {
    size_t i = (size_t)rng_mix((uint64_t)(unsigned)left << 32 | (unsigned)right) & tok->pair_mask;
    while (tok->pairs[i].right != -1 &&
           (tok->pairs[i].left != left || tok->pairs[i].right != right)) {
        i = (i + 1) & tok->pair_mask;
    }
    return &tok->pairs[i];
}

bool tokenizer_pair_add(Tokenizer *tok, int rank) {
    Merge m = tok->merges[rank];
    PairSlot *slot = pair_slot(tok, m.left, m.right);
    if (slot->right != -1) return false;
    *slot = (PairSlot){m.left, m.right, rank};
    return true;
}

static inline int pair_rank(const Tokenizer *tok, int left, int right) {
    const PairSlot *slot = pair_slot(tok, left, right);
    return slot->right == -1 ? NO_RANK : slot->rank;
}

// --- Short pieces

static void merge_short(const Tokenizer *tok, const unsigned char *piece, int n, TokenIds *out) {
    int ids[SHORT_PIECE], rank[SHORT_PIECE];  // rank[i] is that of ids[i], ids[i + 1]
    for (int i = 0; i < n; i++)
        ids[i] = tok->byte_id[piece[i]];
    for (int i = 0; i + 1 < n; i++)
        rank[i] = pair_rank(tok, ids[i], ids[i + 1]);
    while (n > 1) {
        int best = 0;
        for (int i = 1; i + 1 < n; i++) {
            if (rank[i] < rank[best]) best = i;
        }
        if (rank[best] == NO_RANK) break;
        ids[best] = tok->merges[rank[best]].out;
        n--;
        for (int i = best + 1; i < n; i++)
            ids[i] = ids[i + 1];
        for (int i = best + 1; i + 1 < n; i++)
            rank[i] = rank[i + 1];
        if (best + 1 < n) rank[best] = pair_rank(tok, ids[best], ids[best + 1]);
        if (best > 0) rank[best - 1] = pair_rank(tok, ids[best - 1], ids[best]);
    }
    for (int i = 0; i < n; i++)
        token_ids_add(out, ids[i]);
}

// --- Long pieces
// A linked list of symbols and a heap of (rank << 32 | position). A heap entry counts only while
// the pair that starts at its position still has that rank; a symbol that is gone has none.

static void heap_down(uint64_t *heap, size_t n, size_t i) {
    uint64_t v = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= v) break;
        heap[i] = heap[child];
    }
    heap[i] = v;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t v) {
    size_t i = (*n)++;
    for (; i > 0 && heap[(i - 1) / 2] > v; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = v;
}

static void scratch_reserve(MergeScratch *s, size_t n) {
    if (n <= s->cap) return;
    size_t cap = s->cap ? s->cap : 256;
    while (cap < n)
        cap *= 2;
    merge_scratch_free(s);
    s->ids = mem_alloc(cap, sizeof *s->ids);
    s->next = mem_alloc(cap, sizeof *s->next);
    s->prev = mem_alloc(cap, sizeof *s->prev);
    s->rank = mem_alloc(cap, sizeof *s->rank);
    s->heap = mem_alloc(2 * cap, sizeof *s->heap);
    s->cap = cap;
}

// Looks the pair that starts at i up again and queues it.
static void rank_again(const Tokenizer *tok, MergeScratch *s, int i, int n, size_t *heap_n) {
    s->rank[i] = s->next[i] < n ? pair_rank(tok, s->ids[i], s->ids[s->next[i]]) : NO_RANK;
    if (s->rank[i] != NO_RANK) heap_push(s->heap, heap_n, (uint64_t)s->rank[i] << 32 | (unsigned)i);
}

static void merge_long(const Tokenizer *tok, const unsigned char *piece, int n, MergeScratch *s,
                       TokenIds *out) {
    scratch_reserve(s, (size_t)n);
    for (int i = 0; i < n; i++) {
        s->ids[i] = tok->byte_id[piece[i]];
        s->next[i] = i + 1;
        s->prev[i] = i - 1;
    }
    size_t heap_n = 0;
    for (int i = 0; i < n; i++) {
        s->rank[i] = i + 1 < n ? pair_rank(tok, s->ids[i], s->ids[i + 1]) : NO_RANK;
        if (s->rank[i] != NO_RANK) s->heap[heap_n++] = (uint64_t)s->rank[i] << 32 | (unsigned)i;
    }
    for (size_t i = heap_n / 2; i-- > 0;)
        heap_down(s->heap, heap_n, i);
    while (heap_n > 0) {
        uint64_t top = s->heap[0];
        s->heap[0] = s->heap[--heap_n];
        heap_down(s->heap, heap_n, 0);
        int i = (int)(uint32_t)top, rank = (int)(top >> 32);
        if (s->rank[i] != rank) continue;
        int gone = s->next[i];
        s->ids[i] = tok->merges[rank].out;
        s->next[i] = s->next[gone];
        s->rank[gone] = NO_RANK;
        if (s->next[i] < n) s->prev[s->next[i]] = i;
        rank_again(tok, s, i, n, &heap_n);
        if (s->prev[i] >= 0) rank_again(tok, s, s->prev[i], n, &heap_n);
    }
    for (int i = 0; i < n; i = s->next[i])
        token_ids_add(out, s->ids[i]);
}

void tokenizer_merge_piece(const Tokenizer *tok, const char *piece, size_t n, MergeScratch *s,
                           TokenIds *out) {
    const unsigned char *bytes = (const unsigned char *)piece;
    if (n <= SHORT_PIECE)
        merge_short(tok, bytes, (int)n, out);
    else
        merge_long(tok, bytes, (int)n, s, out);
}
