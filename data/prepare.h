// prepare.h - text to token shards: documents -> tokenizer (loaded or learned) -> train_*.bin,
// val_*.bin, tokenizer.json and prepare.json in one folder.
// The output is a function of the inputs and options; the number of threads does not change it.
// Memory is bounded: parts of text in flight, and for learning a tokenizer the distinct pieces of a
// sample. Nothing appears under its final name before everything is written.
#pragma once

#include "gpt/util.h"

#ifdef __cplusplus
extern "C" {
#endif

// What one of train and val holds.
typedef struct PrepareSplit {
    int64_t documents, tokens;  // tokens count the <|endoftext|> in front of each document
    int64_t bytes;              // of text
    int shards;
} PrepareSplit;

typedef struct PrepareInfo {
    PrepareSplit train, val;
    uint64_t tokenizer_hash;
    int n_ids, eot, id_bytes;
    char split[16];            // "gpt2", "gpt4", ...
    int64_t empty_documents;   // passed over
    int binary_files;          // in folders, passed over
    int64_t learned_from;      // bytes of text that the tokenizer was learned from, or 0
    bool learned_from_sample;  // and there was more
} PrepareInfo;

typedef struct PrepareOptions {
    const char *const *inputs;  // files, folders, "-"
    int n_inputs;
    const char *tokenizer;  // see tokenizer_load, or "train:N"
    const char *split;      // how train:N splits; for a loaded one NULL or the one it has
    const char *out;
    int64_t shard_tokens;
    double val_fraction;
    const char *const *val_docs;  // globs of file names; not together with val_fraction
    int n_val_docs;
    const char *field;      // of .jsonl lines
    const char *separator;  // between the documents of a text file, or NULL
    uint64_t seed;
    bool force;            // replace what an earlier run has left in `out`
    int n_threads;         // 0: one per processor
    int64_t sample_bytes;  // most text to learn a tokenizer from
    FILE *progress;        // a line that is rewritten as work goes on, or NULL
    PrepareInfo *info;     // filled on success, or NULL
} PrepareOptions;

// Everything but inputs, tokenizer and out.
PrepareOptions prepare_defaults(void);

// False with a sentence; then `out` is as it was before, unless renaming files in it failed.
bool prepare_run(const PrepareOptions *o, Error *err);

// The subcommand: argv[0..argc) are the arguments behind its name. Prints a summary on stdout (or
// JSON with --json) and returns the exit status: 0, 1 for a failure, 2 for wrong usage. With help
// set it prints its help instead.
int prepare_main(int argc, char **argv, bool help);

// Reads prepare.json; `path` is that file, its folder or a shard beside it.
bool prepare_info_load(PrepareInfo *info, const char *path, Error *err);
// The text of prepare.json.
void prepare_info_write(const PrepareInfo *info, Buf *out);

#ifdef __cplusplus
}
#endif
