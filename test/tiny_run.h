// tiny_run.h - what the tests of training, evaluation and generation share: models that train in
// milliseconds, one for each way to configure a variant; token shards and a tokenizer for them in a
// temporary directory; and runs of train, in this process or in a child.
#pragma once

#include "gpt/run.h"
#include "gpt/train.h"
#include "test/test.h"

// Settings that make a tiny model of a variant; a label of NULL ends the list. Every variant of
// attention_table is there (test_model checks it), some in several ways.
typedef struct TinyVariant {
    const char *label, *settings;
} TinyVariant;
extern const TinyVariant tiny_variants[];
#define FOR_EACH_TINY(v) for (const TinyVariant *v = tiny_variants; v->label; v++)
// The least of everything that config_finish accepts, and the same end of the list.
extern const TinyVariant tiny_least[];

enum { TINY_VOCAB = 263, TINY_SEQ = 16, TINY_BATCH = 4 };

// Two layers of 32 channels, sequences of TINY_SEQ, steps of TINY_BATCH sequences, nothing starts
// at zero, constant rates, one thread; then the settings of both lists ("a.b=c d.e=f"; NULL: none),
// finished. Dies when one does not fit. File settings are empty.
void tiny_config(Config *c, const char *settings, const char *more);
void tiny_set(Config *c, const char *settings);
// A trained-looking model of it, at its initial values, with one thread. The caller frees it.
Model *tiny_model(const Config *c, bool training);
// Logits (n, V) of ids[0..n) in chunks, of those that the cache does not hold yet; it has one row.
void tiny_extend(Model *m, Cache *c, const int *ids, int n, int chunk, float *logits);
// The same over a cache of its own: a prefill, then token by token.
void tiny_by_cache(Model *m, const int *ids, int n, int prefill, float *logits);
// n ids below `limit`, a function of the seed.
void tiny_ids(int *ids, size_t n, int limit, uint64_t seed);
// A table without measuring the machine, which takes longer than a tiny run; and the CPU's.
Ops tiny_unmeasured(const Ops *ops);
const Ops *tiny_ops(void);

// A directory with tokenizer.json (small_tokenizer.h) and shards of unequal length:
//   train_0.bin (TINY_SEQ * 13 + 3 tokens), train_1.bin (* 6 + 1), train_2.bin (* 22 + 15),
//   val_0.bin (* 7 + 1)
enum { TINY_SAMPLES = 13 + 6 + 22, TINY_VAL_SAMPLES = 7 };
typedef struct TinyRun {
    char *dir;
} TinyRun;
TinyRun *tiny_open(void);
void tiny_close(TinyRun *r);
char *tiny_path(const TinyRun *r, const char *name);  // the caller's
// tiny_config with the data of the directory and the run directory DIR/run. Paths hold no spaces.
void tiny_run_config(const TinyRun *r, Config *c, const char *settings, const char *more);
// One more shard or another one in place of an old one: n ids of tiny_ids.
void tiny_shard(const TinyRun *r, const char *name, const int *ids, size_t n);

// train_run with its messages appended to said (NULL: dropped).
bool tiny_train(const TinyRun *r, const Config *c, const Ops *ops, RunStart start, Buf *said,
                Error *err);
// The same, and the test fails when the run does.
void tiny_must_train(TestCtx *t, const TinyRun *r, const Config *c, const Ops *ops);
// In a child, of a process that has computed with one thread only (OpenMP does not survive fork):
// its exit status, or minus the number of the signal that ended it.
int tiny_train_child(const TinyRun *r, const Config *c, const Ops *ops, Buf *said);
// Renames DIR/run, which the next run would go on from, to DIR/name.
void tiny_put_aside(const TinyRun *r, const char *name);
// A subcommand in a child; args end with NULL. What it printed is appended to out and said.
int tiny_command(const TinyRun *r, CommandMain *command, const char *const *args, Buf *out,
                 Buf *said);

// "1:LOSS 2:LOSS ..." of the training lines of RUN/metrics.jsonl, as they are written there, in
// the file's order; the caller's.
char *tiny_losses(const TinyRun *r, const char *run);
// The same as numbers, the first n at most; returns how many there are.
int tiny_loss_values(const TinyRun *r, const char *run, double *out, int n);
// The value of a key in the last training line of RUN/metrics.jsonl, NAN without it.
double tiny_last_metric(const TinyRun *r, const char *run, const char *key);
// Lines of that event in RUN/metrics.jsonl that hold the words.
int tiny_events(const TinyRun *r, const char *run, const char *event, const char *words);
// Whether the two files hold the same bytes; both must exist.
void tiny_same_file(TestCtx *t, const TinyRun *r, const char *a, const char *b);
