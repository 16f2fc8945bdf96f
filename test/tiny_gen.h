// tiny_gen.h - text from a tiny model, collected sample by sample; and models whose logits a test
// dictates.
#pragma once

#include "gpt/generate.h"
#include "test/tiny_run.h"

enum { GEN_V = TINY_VOCAB, GEN_EOT = 262, GEN_SAMPLES = 600 };

// 8 tokens at temperature 1, one sample, the end of text ignored; and the likeliest tokens.
extern const GenerateOptions gen_plain;
GenerateOptions gen_greedy(int64_t tokens);

typedef struct Gen {
    Model *m;
    Tokenizer *tok;  // of small_tokenizer.h
    Buf text[GEN_SAMPLES];
    int emits;
    volatile int cancel;
    int cancel_after;  // emits; 0: never
    GenerateStats stats;
    Error err;
} Gen;

Gen *gen_new(const char *settings, const char *more);
void gen_free(Gen *g);
bool gen_n(Gen *g, const char *prompt, size_t n, const GenerateOptions *o);
bool gen(Gen *g, const char *prompt, const GenerateOptions *o);
void gen_must(TestCtx *t, Gen *g, const char *prompt, const GenerateOptions *o);
void gen_expect(TestCtx *t, const Gen *g, int sample, const char *want, size_t n,
                const char *label);
// The text of greedy_text, each token from a forward pass over all before it; the caller's.
Buf gen_by_forward(Gen *g, const char *prompt, int n);
// The first largest of GEN_V logits.
int gen_best(const float *logits);

// A model with a context of 64 whose k-th logits are such that the k-th id of ids[0..n) is chosen
// greedily, behind the n-th whatever it is. Ids below 256 stand for that byte. One at a time.
Gen *gen_script(const int *ids, int n);
void gen_rewind(void);  // from the first id again
// A model all of whose logits are these (GEN_V).
Gen *gen_fixed(const float *logits);
