// bpe_words.c - see bpe_words.h: a hash table that only grows.
#include "gpt/bpe_words.h"

#include "gpt/rng.h"

#include <assert.h>
#include <string.h>

BpeTrainer *bpe_trainer_new(SplitKind split) {
    BpeTrainer *tr = mem_alloc(1, sizeof *tr);
    tr->split = split;
    tr->mask = 4095;
    tr->words = mem_alloc(tr->mask + 1, sizeof *tr->words);
    return tr;
}

void bpe_trainer_free(BpeTrainer *tr) {
    if (!tr) return;
    buf_free(&tr->text);
    mem_free(tr->words);
    mem_free(tr);
}

size_t bpe_trainer_bytes(const BpeTrainer *tr) {
    return tr->bytes;
}

static uint64_t piece_hash(const char *piece, size_t n) {
    return rng_mix(rng_fnv(RNG_FNV_START, piece, n));
}

static void words_double(BpeTrainer *tr) {
    Word *old = tr->words;
    size_t n = tr->mask + 1;
    tr->mask = 2 * n - 1;
    tr->words = mem_alloc(2 * n, sizeof *tr->words);
    for (size_t k = 0; k < n; k++) {
        if (!old[k].len) continue;
        size_t i = (size_t)piece_hash(tr->text.text + old[k].start, (size_t)old[k].len) & tr->mask;
        while (tr->words[i].len)
            i = (i + 1) & tr->mask;
        tr->words[i] = old[k];
    }
    mem_free(old);
}

static void count_piece(BpeTrainer *tr, const char *piece, size_t n) {
    uint64_t h = piece_hash(piece, n);
    uint32_t tag = (uint32_t)(h >> 32);
    size_t i = (size_t)h & tr->mask;
    for (; tr->words[i].len; i = (i + 1) & tr->mask) {
        Word *w = &tr->words[i];
        if (w->tag != tag || (size_t)w->len != n || memcmp(tr->text.text + w->start, piece, n))
            continue;
        w->count++;
        return;
    }
    tr->words[i] = (Word){tr->text.n, (int)n, tag, 1};
    buf_add(&tr->text, piece, n);
    if (++tr->n_words > tr->mask / 2) words_double(tr);
}

void bpe_trainer_add(BpeTrainer *tr, const char *text, size_t n, size_t end) {
    assert(end <= n);
    for (size_t at = 0; at < end;) {
        size_t next = split_next(tr->split, text, n, at, NULL);
        count_piece(tr, text + at, next - at);
        at = next;
    }
    tr->bytes += end;
}
