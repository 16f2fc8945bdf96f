// attn_harness.h - one attention layer without a model: its weights, activations and cache, on any
// device, and the same layer as a double-precision reference.
// Weights are noise, also those that training starts at zero: with a zero output projection every
// gradient and parity test would pass for nothing. Memory that a variant has to write starts as
// NaN.
#pragma once

#include "attention/attention.h"
#include "test/test.h"

typedef struct AttnHarness {
    const Ops *ops;
    const Attention *attn;
    AttnDims d;
    TensorTable params;
    float *value[ATTN_MAX_TENSORS];  // logical, host
    char *param_arena;               // device, as are all pointers below
    float *grad_arena;
    Weight weight[ATTN_MAX_TENSORS], derived[ATTN_MAX_TENSORS];
    float *dw[ATTN_MAX_TENSORS], *dderived[ATTN_MAX_TENSORS];
    TensorSpec derived_row[ATTN_MAX_TENSORS];
    int n_derived;
    void *packed[2 * ATTN_MAX_TENSORS];
    int n_packed;
    void *saved[ATTN_MAX_TENSORS], *cache[ATTN_MAX_TENSORS];
    size_t cache_bytes[ATTN_MAX_TENSORS];
    int n_saved, n_cache;
    void *scratch, *extend_scratch;
    float *rope;       // device
    float *rope_host;  // the same, for the reference
    int *pos, *n_new;
} AttnHarness;

// Weights depend on seed and tensor name alone. Dies when the sizes do not work.
AttnHarness *harness_new(const Ops *ops, const char *variant, AttnDims d, uint64_t seed);
void harness_free(AttnHarness *h);

// Row number by name; dies when there is none.
int harness_row(const AttnHarness *h, const char *name);
size_t harness_size(const AttnHarness *h, int row);  // logical elements
// Copies h->value to the device; after changing it.
void harness_load(AttnHarness *h);

// out (B, T, C) from x (B, T, C), all host. Activations stay for backward.
void harness_forward(AttnHarness *h, float *out, const float *x);
// Clears weight gradients, sets dx (B, T, C), folds derived gradients.
void harness_backward(AttnHarness *h, float *dx, const float *dout, const float *x);
// Gradient of a row in logical order, host; freed with mem_free.
float *harness_grad(const AttnHarness *h, int row);
// x (B, T, C) with T <= d.T: row b appends n_new[b] tokens at pos[b]. out (B, T, C).
void harness_extend(AttnHarness *h, float *out, const float *x, int T, const int *pos,
                    const int *n_new);
// All NaN.
void harness_clear_cache(AttnHarness *h);

// The layer once more: out (B, T, C) from x, with the parameters `value` (params() order, logical).
void ref_attention_layer(double *out, const double *x, double *const *value, const AttnHarness *h);
