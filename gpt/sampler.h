// sampler.h - from logits to one token id. Stages, in this order:
//   penalties -> temperature 0: argmax -> top-k -> top-p -> min-p -> temperature -> draw
// Ties are ordered by id, so the kept sets are deterministic and top_k = 1 equals temperature 0.
#pragma once

#include "gpt/util.h"

typedef struct SampleOptions {
    double temperature;         // >= 0
    int64_t top_k;              // 0: off
    double top_p;               // in (0, 1]; 1: off
    double min_p;               // in [0, 1]; 0: off
    double repetition_penalty;  // > 0; 1: off. Once for each distinct id of the window
    int64_t repeat_window;      // latest tokens, prompt included, that the penalty looks at; 0: all
} SampleOptions;

typedef struct Sampler {
    SampleOptions o;
    int V;
    struct Candidate *candidates;  // (V)
    float *logits;                 // (V) after penalties
} Sampler;

// False with a sentence when an option is out of its range. Free with sampler_free.
bool sampler_init(Sampler *s, const SampleOptions *o, int V, Error *err);
void sampler_free(Sampler *s);

// The next id. logits (V) are left alone; non-finite ones are never chosen, and when none is finite
// the result is -1 with a sentence. u in [0, 1) is the draw, from the sequence's own generator.
int sampler_next(Sampler *s, const float *logits, const int *history, size_t n_history, double u,
                 Error *err);
