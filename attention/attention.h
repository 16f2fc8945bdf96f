// attention.h - one attention variant = one unit, x in, y out.
// A variant owns everything between the layer norm's output and the residual add: its projections,
// the treatment of positions, the core, the output projection and the cache. It declares its
// tensors in small spec tables; memory, names, initial values, counts, optimizer groups,
// checkpoints and cache bytes follow from those rows. It sees ops and tensors, never the model or
// the config.
#pragma once

#include "kernels/ops.h"

#include <math.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { ATTN_MAX_TENSORS = 16 };

typedef enum Position { POSITION_NONE, POSITION_LEARNED, POSITION_ROPE } Position;
typedef enum AttnPath { PATH_FACTORED, PATH_MERGED } AttnPath;  // lrkv in training

// Sizes and switches of one call. B, T change between calls; the rest is the model's.
typedef struct AttnDims {
    int B, T, C, Tmax;     // batch, new tokens, channels, rows of the cache per sequence
    int NH, NKV, HS, HV;   // query heads, key/value heads, head size, value head size
    int RQ, RKV, HR;       // mla: q_lora_rank (0: full), kv_lora_rank, qk_rope_head_dim (0: none)
    int R;                 // lrkv: residual rank per head
    float residual_ratio;  // lrkv: |U B^T|_F / |Ws|_F at the start
    float eps, qk_scale;   // norm_eps; scale of the scores, 0: 1/sqrt of the variant's key width
    bool qk_norm, bias;
    bool any_order;  // SdpaArgs.any_order of backward
    Position position;
    AttnPath path;
    float std_in,
        std_out;       // initial std of input projections (0: 1/sqrt(fan_in)) and of wo (0: zero)
    ElemType compute;  // operand type of products on the CPU
    ElemType cache_type;  // TYPE_F32 or TYPE_BF16; before a table is known perhaps TYPE_FX
} AttnDims;

// What one call needs, for one layer; built by the model.
typedef struct AttnCall {
    const Ops *ops;
    AttnDims d;
    // In params() order. Where rows join, the Weight of the first one spans them all, and so do its
    // data and its gradient; the Weights of the joined rows are still valid for themselves, but
    // have no prepared copies. Vectors have data only.
    const Weight *w;
    float **dw;        // fp32 gradients of the params, stored (padded) form
    void **saved;      // what forward keeps for backward, in saved() order
    Weight *derived;   // tensors rebuilt from parameters (merged W_h), in derived() order
    float **dderived;  // their gradients, accumulated by backward, folded into dw by finish
    void **cache;      // in cache() order; [b] at b * spec_stored(row) elements
    const int *pos,
        *n_new;         // (B) device: row b appends n_new[b] <= T tokens at pos[b] (extend only)
    int max_pos;        // host bound on pos[b] + n_new[b]
    const float *rope;  // (Tmax, rope_width/2, 2) cos, sin
    void *scratch;      // scratch() bytes, contents undefined between calls
} AttnCall;

// Fills rows for the given sizes and returns how many (<= ATTN_MAX_TENSORS).
typedef int AttnLayout(TensorSpec *spec, const AttnDims *d);

typedef struct Attention {
    const char *name;     // attention.type in the config
    const char *summary;  // for help and documents
    // NULL, or one sentence why these sizes do not work.
    const char *(*check)(const AttnDims *d);
    AttnLayout *params;  // weights
    AttnLayout *saved;   // activations kept for backward; rows of B*T tokens (or B*T*NH statistics)
    AttnLayout *derived;  // tensors rebuilt from parameters: never optimised, never saved; or NULL
    AttnLayout *cache;    // per sequence: dim[0] = rows for Tmax positions, dim[1] = values each
    size_t (*scratch)(const AttnDims *d);         // bytes that forward and backward need
    size_t (*extend_scratch)(const AttnDims *d);  // bytes that extend needs
    // After load and after each optimizer step: rebuild derived (the caller prepares the Weights).
    void (*prepare)(const AttnCall *c);
    // out (B, T, C) from x (B, T, C); repeatable, touches no cache.
    void (*forward)(const AttnCall *c, floatX *out, const floatX *x);
    // dx is set; dw accumulate.
    void (*backward)(const AttnCall *c, floatX *dx, const floatX *dout, const floatX *x);
    // Once after the last micro-batch of a step: dderived -> dw. NULL without derived tensors.
    void (*finish)(const AttnCall *c);
    // The same function as forward for tokens appended to the cache: prefill, chunked prefill,
    // decode. Rows of the batch may stand at different positions. out for t >= n_new[b] is
    // undefined.
    void (*extend)(const AttnCall *c, floatX *out, const floatX *x);
} Attention;

// NULL-terminated list of all variants; adding one is a row in attention.c.
extern const Attention *const attention_table[];

// The variant of that name, or NULL.
const Attention *attention_find(const char *name);
// Values per token that the cache of one layer holds, from the cache rows.
size_t attention_cache_values(const Attention *a, const AttnDims *d);
// Width that RoPE rotates: HR for a decoupled key, else HS; 0 without RoPE.
int attention_rope_width(const AttnDims *d);

// --- helpers that variants share
// Ranks are stored padded to 16 bytes of bf16, with zero rows and columns.
static inline int attn_stored_rank(int r) {
    return (r + 7) / 8 * 8;
}

// Initial std of an input projection with that fan-in.
static inline float attn_std_in(const AttnDims *d, int fan_in) {
    return d->std_in > 0 ? d->std_in : 1.0f / sqrtf((float)fan_in);
}

// Scale of the scores for keys of that (training) width.
static inline float attn_scale(const AttnDims *d, int key_width) {
    return d->qk_scale > 0 ? d->qk_scale : 1.0f / sqrtf((float)key_width);
}

// The output projection (C, in), zero at the start when std_out is 0.
static inline TensorSpec attn_wo_row(const AttnDims *d, int in) {
    TensorSpec s = {.name = "wo", .dim = {d->C, in}, .kind = KIND_MATRIX};
    s.init = d->std_out > 0 ? INIT_NORMAL : INIT_ZERO;
    s.std = d->std_out;
    return s;
}

static inline TensorSpec attn_bias_row(const char *name, int n, bool join) {
    TensorSpec s = {.name = name, .dim = {n, 0}, .type = TYPE_F32, .kind = KIND_VECTOR};
    s.join = join;
    return s;
}

// Bias row i, or NULL when the model has no biases.
static inline const float *attn_vector(const AttnCall *c, int i) {
    return c->d.bias ? (const float *)c->w[i].data : NULL;
}

#ifdef __cplusplus
}
#endif
