// bpe_train.h - learns a byte-level BPE tokenizer from text.
// The result is a function of the text, the splitting and the size alone: the pair with the highest
// count merges first, and of equal counts the one whose two byte strings are the greatest.
#pragma once

#include "gpt/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

// Collects text. Memory grows with the distinct pieces, not with the text.
typedef struct BpeTrainer BpeTrainer;

BpeTrainer *bpe_trainer_new(SplitKind split);
void bpe_trainer_free(BpeTrainer *trainer);

// Counts the pieces of text[0..end), where bytes end..n are the text behind a part that
// tokenizer_cut has found; end = n for a whole text.
void bpe_trainer_add(BpeTrainer *trainer, const char *text, size_t n, size_t end);
// Bytes counted so far.
size_t bpe_trainer_bytes(const BpeTrainer *trainer);

// Learns n_ids ids: the 256 bytes in GPT-2's order, the merges, <|endoftext|> last. The tokenizer
// is owned by the caller; NULL with a sentence when n_ids is out of range or the text has too few
// pairs for it. The counts stay as they are.
Tokenizer *bpe_trainer_learn(const BpeTrainer *trainer, int n_ids, Error *err);

// All of the above for one text.
Tokenizer *tokenizer_train(SplitKind split, const char *text, size_t n, int n_ids, Error *err);

#ifdef __cplusplus
}
#endif
