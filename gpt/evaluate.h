// evaluate.h - loss, perplexity and bits per byte of a model over token windows.
#pragma once

#include "data/dataloader.h"
#include "gpt/model.h"
#include "gpt/tokenizer.h"

// Sums over scored targets. Special tokens (document separators) count in the loss, but neither in
// text_nats nor in bytes, so that bits per byte does not depend on how documents are separated.
typedef struct EvalSum {
    double nats, text_nats;
    int64_t tokens, bytes;
    int64_t bad;  // targets whose loss is not finite; they are in no other sum
} EvalSum;

// Scores one micro-batch of the model's activations' size, host arrays (B, T), targets -1 = not
// scored. tok NULL: no bytes.
void eval_batch(Model *m, const Tokenizer *tok, const int *ids, const int *targets, EvalSum *sum);
// Non-overlapping windows over ids[0..n): every id but the first is scored once, with up to T-1
// tokens of context; at most max_tokens targets (0: all).
void eval_ids(Model *m, const Tokenizer *tok, const int *ids, size_t n, int64_t max_tokens,
              EvalSum *sum);
// The same over the samples of a loader, in its order, at most one epoch; what its shards hold
// behind their last whole sample is not scored. Ends between two batches when *cancelled is not 0
// (NULL: never), with a sum of what was scored. False when a shard can't be read.
bool eval_loader(Model *m, const Tokenizer *tok, DataLoader *data, int64_t max_tokens,
                 const volatile int *cancelled, EvalSum *sum, Error *err);

double eval_loss(const EvalSum *s);           // nats per token
double eval_bits_per_byte(const EvalSum *s);  // NaN without bytes
