// bpe_words.h - the distinct pieces of a text with their counts, for bpe_train.c.
#pragma once

#include "gpt/bpe_train.h"

typedef struct Word {
    size_t start;  // into text
    int len;       // 0: empty slot
    uint32_t tag;  // upper half of the hash
    int64_t count;
} Word;

struct BpeTrainer {
    SplitKind split;
    size_t bytes;
    Buf text;     // the distinct pieces, one after another
    Word *words;  // (mask + 1) by hash
    size_t mask, n_words;
};
