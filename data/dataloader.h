// dataloader.h - samples of T + 1 tokens from a set of shards, in a keyed order, for ever.
//
// A sample is T + 1 consecutive tokens of one shard; samples of a shard start every T tokens, and
// what is left at its end is not used. Counting goes on over epochs: sample i belongs to epoch
// i / n_samples. Each epoch has every sample once, in an order that is a pure function of seed and
// epoch. So the position in the data is the number i alone: it does not depend on micro-batch,
// accumulation or ranks, and resuming needs nothing else. Memory is constant.
#pragma once

#include "gpt/util.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DataLoaderOptions {
    const char *patterns;  // globs separated by white space; a backslash keeps the next character
    int seq_len;           // T
    int n_vocab;           // ids at or above it are an error
    uint64_t seed;
    bool shuffle;  // else the order of the files and the tokens in them
} DataLoaderOptions;

typedef struct DataLoader DataLoader;

// Finds and checks every shard. NULL with a sentence: a pattern without a file, a file that is no
// shard or is named twice, no shard with T + 1 tokens. Close with dataloader_close.
DataLoader *dataloader_open(const DataLoaderOptions *o, Error *err);
void dataloader_close(DataLoader *l);

// Samples first .. first + n - 1, first >= 0: inputs (n, T), targets (n, T), the input one token
// on. False with a sentence when a file can't be read any more or has an id out of range. One
// caller at a time.
bool dataloader_read(DataLoader *l, int64_t first, int n, int *inputs, int *targets, Error *err);

// Starts reading these samples in a thread, for the next dataloader_read with the same first and n.
// Its errors come with that read; a read of other samples is served all the same.
void dataloader_prefetch(DataLoader *l, int64_t first, int n);

typedef struct DataLoaderInfo {
    int n_shards;
    int64_t n_samples;     // of one epoch
    int64_t n_tokens;      // in all shards
    int64_t n_unused;      // of these, tokens that are in no sample
    uint64_t fingerprint;  // over the files' names (without folders), sizes and headers, in order
} DataLoaderInfo;
DataLoaderInfo dataloader_info(const DataLoader *l);

// Which of an epoch's samples, counted in file order, is sample i.
int64_t dataloader_order(const DataLoader *l, int64_t i);

#ifdef __cplusplus
}
#endif
