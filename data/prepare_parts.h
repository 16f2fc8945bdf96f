// prepare_parts.h - the state of one run, shared by the files prepare*.c only.
#pragma once

#include "data/documents.h"
#include "data/prepare.h"
#include "data/shard.h"

typedef struct Output {
    const char *name;  // "train", "val"
    ShardWriter writer;
    bool is_open;
    PrepareSplit *count;
} Output;

typedef struct Prepare {
    const PrepareOptions *o;
    Documents docs;
    Tokenizer *tok;
    PrepareInfo info;
    char *tmp;  // folder for all output until the end
    Output train, val;
    double started;  // seconds
    double told;     // when the progress line was last written, 0 when it is not there
} Prepare;

// Whether the options make sense by themselves; *n_learn is N of "train:N", else 0.
bool prepare_check(const PrepareOptions *o, int64_t *n_learn, SplitKind *split, Error *err);
// Learns the tokenizer from the text that goes to training (prepare_encode.c).
bool prepare_learn(Prepare *p, SplitKind split, int n_ids, Error *err);
// Encodes every document and writes the shards into p->tmp.
bool prepare_encode(Prepare *p, Error *err);
