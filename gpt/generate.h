// generate.h - text from a model: one prefill, then any number of samples decoded side by side,
// each with its own row of the KV cache and its own random stream.
#pragma once

#include "gpt/model.h"
#include "gpt/sampler.h"
#include "gpt/tokenizer.h"

typedef struct GenerateOptions {
    SampleOptions sample;
    int64_t tokens;  // most new tokens for each sample; -1: until the end of text or of the context
    int64_t samples;
    uint64_t seed;    // sample i draws from (seed, i), whatever the number of samples
    bool ignore_eot;  // go on behind the end-of-text token
    const char *const *stop;
    int n_stop;
} GenerateOptions;

typedef struct GenerateStats {
    int64_t prompt_tokens, generated;  // generated: over all samples
    double prefill_seconds, decode_seconds;
    int64_t decoded;       // tokens whose successor was computed in decode_seconds
    size_t cache_bytes;    // allocated
    ElemType cache_type;   // TYPE_F32 or TYPE_BF16
    int64_t cache_values;  // per token and layer
    int cache_rows, cache_length;
    const char
        *finish;  // of the first sample: "length", "end of text", "stop", "context", "cancelled"
} GenerateStats;

// Receives text of a sample as it becomes showable: whole UTF-8 characters, nothing of a stop
// string.
typedef void GenerateEmit(void *ctx, int sample, const char *text, size_t n);

// Whether the prompt can be answered: it has tokens, they are the model's, they leave room, and the
// options are in range.
bool generate_check(const Model *m, const Tokenizer *tok, const char *prompt, size_t n,
                    const GenerateOptions *o, Error *err);

// prompt[0..n) is encoded without special tokens. An empty prompt starts from the end-of-text
// token. A prompt that leaves no room in the context is a sentence with both counts. cancel (may be
// NULL) is looked at between tokens. The model needs no activations of its own.
bool generate_text(Model *m, const Tokenizer *tok, const char *prompt, size_t n,
                   const GenerateOptions *o, GenerateEmit *emit, void *ctx,
                   const volatile int *cancel, GenerateStats *stats, Error *err);
