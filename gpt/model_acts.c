// model_acts.c - the activation arena: one layout function counts it and lays it out, so that what
// plan prints is what is allocated.
#include "gpt/model_impl.h"

#include <string.h>

// Logits at a time: 64 MiB of fp32, or 256 MiB of bf16, whose devices compute so fast that reading
// the head's weights and gradient for each chunk would take longer than a short chunk's products.
enum { LOGIT_CHUNK_F32 = 16 << 20, LOGIT_CHUNK_BF16 = 128 << 20 };

typedef struct Carver {
    char *base;  // NULL: only count
    size_t used;
} Carver;

static void *carve(Carver *c, size_t elements, size_t elem_size) {
    size_t at = c->used;
    c->used += round_up(elements * elem_size, 256);
    return c->base && elements ? c->base + at : NULL;
}

size_t model_logit_rows(const Config *c, const Ops *ops, size_t N) {
    size_t elements = ops->elem_size == sizeof(float) ? LOGIT_CHUNK_F32 : LOGIT_CHUNK_BF16;
    size_t most = elements / (size_t)config_padded_vocab(c) / 64 * 64;
    size_t chunks = N ? ceil_div(N, most < 64 ? 64 : most) : 1;
    return min_size(N, round_up(ceil_div(N, chunks), 64));  // of nearly equal size
}

static void carve_stats(Carver *k, float **mean, float **rstd, size_t N, bool layer_norm) {
    *mean = carve(k, layer_norm ? N : 0, sizeof(float));
    *rstd = carve(k, N, sizeof(float));
}

static void carve_layer(Carver *k, LayerActs *a, const Config *c, const AttnDims *d, size_t fx) {
    size_t N = (size_t)d->B * (size_t)d->T, C = (size_t)d->C, F = (size_t)c->model.ffn_dim;
    bool layer_norm = c->model.norm == NORM_LAYER;
    a->res_in = carve(k, N * C, fx);
    a->ln_1 = carve(k, N * C, fx);
    carve_stats(k, &a->mean_1, &a->rstd_1, N, layer_norm);
    a->res_mid = carve(k, N * C, fx);
    a->ln_2 = carve(k, N * C, fx);
    carve_stats(k, &a->mean_2, &a->rstd_2, N, layer_norm);
    a->fc = carve(k, N * F * (c->model.activation == ACT_SWIGLU ? 2 : 1), fx);
    a->act = carve(k, N * F, fx);
}

static void carve_saved(Carver *k, LayerActs *a, const Attention *attn, const AttnDims *d,
                        size_t fx) {
    TensorSpec s[ATTN_MAX_TENSORS] = {{0}};
    int n = attn->saved(s, d);
    for (int i = 0; i < n; i++) {
        a->saved[i] = carve(k, spec_stored(&s[i]), elem_bytes(s[i].type, fx));
    }
}

void acts_layout(Acts *a, const Config *c, const Ops *ops, const AttnDims *d, ActsUse use) {
    const Attention *attn = attention_find(c->attention.type);
    size_t N = (size_t)d->B * (size_t)d->T, C = (size_t)d->C, fx = ops->elem_size;
    size_t F = (size_t)c->model.ffn_dim, fc = F * (c->model.activation == ACT_SWIGLU ? 2 : 1);
    int Vp = config_padded_vocab(c);
    bool layer_norm = c->model.norm == NORM_LAYER, training = use == ACTS_TRAIN;
    Carver k = {.base = a->arena};
    a->B = d->B, a->T = d->T;
    a->ids = carve(&k, N, sizeof(int));
    a->targets = carve(&k, N, sizeof(int));
    a->losses = carve(&k, N, sizeof(float));
    if (c->model.embed_norm) {
        a->embed = carve(&k, N * C, fx);
        carve_stats(&k, &a->embed_mean, &a->embed_rstd, N, layer_norm);
    }
    for (int l = 0; l < a->n_layers; l++) {
        LayerActs unused, *layer = a->layer ? &a->layer[l] : &unused;
        carve_layer(&k, layer, c, d, fx);
        if (use != ACTS_EXTEND) carve_saved(&k, layer, attn, d, fx);
    }
    a->branch = carve(&k, N * C, fx);
    a->res_f = carve(&k, N * C, fx);
    a->ln_f = carve(&k, N * C, fx);
    carve_stats(&k, &a->mean_f, &a->rstd_f, N, layer_norm);
    a->chunk = (int)model_logit_rows(c, ops, N);
    a->logits = carve(&k, (size_t)a->chunk * (size_t)Vp, fx);
    a->last = carve(&k, use == ACTS_EXTEND ? (size_t)d->B * C : 0, fx);
    a->scratch = carve(&k, use == ACTS_EXTEND ? attn->extend_scratch(d) : attn->scratch(d), 1);
    a->dres = carve(&k, training ? N * C : 0, fx);
    a->dtmp = carve(&k, training ? N * C : 0, fx);
    a->dfc = carve(&k, training ? N * fc : 0, fx);
    a->dact = carve(&k, training ? N * F : 0, fx);
    a->bytes = k.used;
}

Acts *acts_create(const Model *m, const AttnDims *d, ActsUse use) {
    Acts *a = mem_alloc(1, sizeof *a);
    a->n_layers = use == ACTS_TRAIN ? m->L : 1;
    a->layer = mem_alloc((size_t)a->n_layers, sizeof(LayerActs));
    acts_layout(a, &m->cfg, m->ops, d, use);
    a->arena = m->ops->alloc(a->bytes);
    acts_layout(a, &m->cfg, m->ops, d, use);
    return a;
}

void acts_free(const Model *m, Acts *a) {
    if (!a) return;
    m->ops->free(a->arena);
    mem_free(a->layer);
    mem_free(a);
}

void model_alloc_acts(Model *m, int B, int T) {
    acts_free(m, m->acts);
    AttnDims d = config_attn_dims(&m->cfg, B, T, T);
    m->acts = acts_create(m, &d, m->grad_arena ? ACTS_TRAIN : ACTS_FORWARD);
    m->B = B, m->T = T;
}

size_t model_acts_bytes(const Config *c, const Ops *ops, int B, int T) {
    AttnDims d = config_attn_dims(c, B, T, T);
    Acts a = {.n_layers = c->model.n_layer};
    acts_layout(&a, c, ops, &d, ACTS_TRAIN);
    return a.bytes;
}
