// model_impl.h - what the model's own files share; nobody else includes it.
#pragma once

#include "gpt/model.h"

// What activations are for: every layer's kept for the backward pass, one layer's after the other
// for losses and logits, or the same for new tokens over a cache.
typedef enum ActsUse { ACTS_TRAIN, ACTS_FORWARD, ACTS_EXTEND } ActsUse;

// Activations of one layer. Only in training every layer has its own.
typedef struct LayerActs {
    floatX *res_in;                 // (N, C) residual stream before attention
    floatX *ln_1;                   // (N, C) normed
    float *mean_1, *rstd_1;         // (N)
    floatX *res_mid;                // (N, C) residual stream before the mlp
    floatX *ln_2;                   // (N, C)
    float *mean_2, *rstd_2;         // (N)
    floatX *fc;                     // (N, F), or (N, 2F) for SwiGLU
    floatX *act;                    // (N, F)
    void *saved[ATTN_MAX_TENSORS];  // the variant's own
} LayerActs;

typedef struct Acts {
    int B, T;
    char *arena;
    size_t bytes;
    int *ids, *targets;  // (N)
    float *losses;       // (N)
    floatX *embed;       // (N, C) before embed_norm
    float *embed_mean, *embed_rstd;
    LayerActs *layer;  // (L) in training, else (1)
    int n_layers;
    floatX *branch;        // (N, C) output of attention or mlp
    floatX *res_f, *ln_f;  // (N, C)
    float *mean_f, *rstd_f;
    floatX *logits;  // (chunk, Vp)
    int chunk;       // rows of logits at a time
    floatX *last;    // (B, C) ACTS_EXTEND: rows whose logits are wanted
    void *scratch;   // the variant's
    // ACTS_TRAIN
    floatX *dres, *dtmp;  // (N, C)
    floatX *dfc, *dact;   // (N, F or 2F), (N, F)
} Acts;

// Lays the activations out in acts->arena, or only counts acts->bytes when it is NULL.
void acts_layout(Acts *acts, const Config *c, const Ops *ops, const AttnDims *d, ActsUse use);
Acts *acts_create(const Model *m, const AttnDims *d, ActsUse use);
void acts_free(const Model *m, Acts *acts);

// Row indices in model->params: globals by name, rows inside a layer by offset.
typedef struct LayerRows {
    int ln_1_weight, ln_1_bias, ln_2_weight, ln_2_bias;
    int c_fc, c_fc_bias, c_proj, c_proj_bias;
    int attn;  // first row of the variant
} LayerRows;

LayerRows model_layer_rows(const Model *m, int layer);
// fp32 vector `row`, NULL for row < 0; and its gradient.
const float *model_vector(const Model *m, int row);
float *model_grad(const Model *m, int row);

// The call for layer l with the given dims; saved, scratch from acts (NULL: none), no cache.
typedef struct LayerCall {
    AttnCall call;
    float *dw[ATTN_MAX_TENSORS];
    void *cache[ATTN_MAX_TENSORS];
} LayerCall;
void model_attn_call(LayerCall *out, const Model *m, const Acts *acts, const AttnDims *d,
                     int layer);

NormArgs model_norm_args(const Model *m, size_t N);
// Embedding and all layers up to the final norm; cache NULL: training or full forward.
void model_trunk(Model *m, Acts *acts, const AttnDims *d, Cache *cache, int max_pos);
const Weight *model_head(const Model *m);
