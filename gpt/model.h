// model.h - the GPT, written once over the op table: tensors, forward, backward, extend.
// Knows no files, no data and no optimizer.
#pragma once

#include "gpt/config.h"

// Parameters and what hangs on them.
typedef struct Model {
    Config cfg;
    const Ops *ops;
    const Attention *attn;
    int V, Vp, C, F, L, NH;  // vocabulary, padded, channels, ffn width, layers, heads
    TensorTable params;      // the parameter rows; gradients and moments use the same offsets
    char *param_arena;       // params.bytes, device
    float *grad_arena;       // params.elements fp32, device; NULL in inference
    Weight *weight;          // one for each row of params
    char *packed_arena;      // prepared copies of all weights
    size_t packed_bytes;
    int attn_first;  // row of layer 0's first attention tensor, relative to the layer's first row
    int layer_first, layer_rows;  // first row of layer 0; rows in a layer
    Weight *derived;              // (L, n_derived)
    float **dderived;
    int n_derived;
    char *derived_arena;  // values, packed copies and gradients of derived tensors
    size_t derived_bytes;
    float *rope;  // (Tmax, rope_width/2, 2), device, or NULL
    int rope_rows;
    struct Acts *acts;  // activations of one micro-batch, or NULL
    int B, T;           // sizes of acts
    StepState *state;   // device
} Model;

// The parameter rows that a config means; the table's elem_size is the op table's.
void model_params(TensorTable *t, const Config *c, size_t elem_size);

// Allocates parameters (and gradients when training); values are zero. Free with model_free.
// The config must have passed config_finish.
Model *model_create(const Config *c, const Ops *ops, bool training);
void model_free(Model *m);
// Initial values from the seed, then model_prepare.
void model_init(Model *m, uint64_t seed);
// One tensor between host fp32 (logical order) and the parameter arena. set does not prepare.
void model_set_tensor(Model *m, int tensor, const float *logical);
void model_get_tensor(const Model *m, int tensor, float *logical);
// Rebuilds derived tensors and the packed copies; after loading and after each optimizer step.
void model_prepare(Model *m);

// Before the first micro-batch of a step: gradients, derived gradients and the step's sums to zero.
void model_step_begin(Model *m);

// Activations for micro-batches of B sequences of T tokens, freed with the model or by another
// call. A model that was not created for training needs those of one layer only: it has losses and
// logits, but no model_step with a backward pass.
void model_alloc_acts(Model *m, int B, int T);
size_t model_acts_bytes(const Config *c, const Ops *ops, int B, int T);
// Rows of logits that exist at a time when the loss of N tokens is computed: the head's products.
size_t model_logit_rows(const Config *c, const Ops *ops, size_t N);
size_t model_packed_bytes(const Config *c, const Ops *ops, bool training);
size_t model_derived_bytes(const Config *c, const Ops *ops, bool training);

// Forward and loss of ids, targets (B, T), host; losses are scaled by 1/n_targets and added to
// state->loss_sum. With `backward` the gradients of everything accumulate in grad_arena, and
// layer_done(ctx, l) is called when the gradients of layer l are complete for this micro-batch
// (l = L for head and final norm, -1 for embeddings); last marks the last micro-batch of the step,
// which folds derived gradients.
typedef void LayerDone(void *ctx, int layer);
void model_step(Model *m, const int *ids, const int *targets, double n_targets, bool backward,
                bool last, LayerDone *layer_done, void *ctx);
// Forward only; losses (B*T) nats to the host, 0 where the target is -1.
void model_losses(Model *m, const int *ids, const int *targets, float *losses);
// Forward only; logits (B*T, V) soft-capped, to the host. For tests and small vocabularies.
void model_logits(Model *m, const int *ids, float *logits);

// --- inference
typedef struct Cache {
    int B, Tmax;
    int *pos;  // (B) host: tokens held by each row
    int *device_pos, *device_n_new;
    void **row;  // (L, n_rows) device pointers
    int n_rows;
    TensorSpec spec[ATTN_MAX_TENSORS];
    char *arena;
    size_t bytes;       // what is allocated
    struct Acts *acts;  // for chunks of (B, chunk)
    int chunk;
} Cache;

// Room for B sequences of Tmax tokens, prefilled in chunks of at most `chunk` tokens.
Cache *cache_create(const Model *m, int B, int Tmax, int chunk);
void cache_free(const Model *m, Cache *c);
// Contents and position of a row to another row, of the same cache or of one with the same Tmax.
void cache_copy_row(const Model *m, Cache *to, int to_row, const Cache *from, int from_row);
size_t cache_bytes(const Config *c, const Ops *ops, int B, int Tmax);
// Appends n_new[b] tokens (0 <= n_new[b] <= T <= chunk) to row b; ids (B, T) host. logits, host:
// of the last new token of each row (B, V) when all is false; of every position (B, T, V)
// otherwise. Rows with n_new[b] = 0 are left alone. The caller keeps pos + n_new <= Tmax.
void model_extend(Model *m, Cache *c, const int *ids, int T, const int *n_new, float *logits,
                  bool all);
