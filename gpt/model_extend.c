// model_extend.c - inference: prefill, chunked prefill and decode are one function over the cache
// that the attention variant declares.
#include "gpt/model_impl.h"

#include <assert.h>
#include <string.h>

static AttnDims cache_dims(const Config *c, const Ops *ops, int B, int T, int Tmax) {
    AttnDims d = config_attn_dims(c, B, T, Tmax);
    d.cache_type = elem_stored(d.cache_type, ops->elem_size);
    return d;
}

static size_t row_bytes(const TensorSpec *s, const Ops *ops) {
    return spec_stored(s) * elem_bytes(s->type, ops->elem_size);
}

size_t cache_bytes(const Config *c, const Ops *ops, int B, int Tmax) {
    TensorSpec s[ATTN_MAX_TENSORS] = {{0}};
    AttnDims d = cache_dims(c, ops, B, 1, Tmax);
    int n = attention_find(c->attention.type)->cache(s, &d);
    size_t bytes = 0;
    for (int i = 0; i < n; i++)
        bytes += round_up((size_t)B * row_bytes(&s[i], ops), 256);
    return bytes * (size_t)c->model.n_layer;
}

Cache *cache_create(const Model *m, int B, int Tmax, int chunk) {
    Cache *c = mem_alloc(1, sizeof *c);
    AttnDims d = cache_dims(&m->cfg, m->ops, B, chunk, Tmax);
    c->B = B, c->Tmax = Tmax, c->chunk = chunk;
    c->n_rows = m->attn->cache(c->spec, &d);
    c->bytes = cache_bytes(&m->cfg, m->ops, B, Tmax);
    c->arena = m->ops->alloc(c->bytes);
    c->row = mem_alloc((size_t)m->L * (size_t)c->n_rows, sizeof(void *));
    char *at = c->arena;
    for (int i = 0; i < m->L * c->n_rows; i++) {
        c->row[i] = at;
        at += round_up((size_t)B * row_bytes(&c->spec[i % c->n_rows], m->ops), 256);
    }
    c->pos = mem_alloc((size_t)B, sizeof(int));
    c->device_pos = m->ops->alloc((size_t)B * sizeof(int));
    c->device_n_new = m->ops->alloc((size_t)B * sizeof(int));
    c->acts = acts_create(m, &d, ACTS_EXTEND);
    return c;
}

void cache_free(const Model *m, Cache *c) {
    if (!c) return;
    acts_free(m, c->acts);
    m->ops->free(c->arena);
    m->ops->free(c->device_pos);
    m->ops->free(c->device_n_new);
    mem_free(c->pos);
    mem_free(c->row);
    mem_free(c);
}

void cache_copy_row(const Model *m, Cache *to, int to_row, const Cache *from, int from_row) {
    assert(to->Tmax == from->Tmax);
    for (int i = 0; i < m->L * to->n_rows; i++) {
        size_t bytes = row_bytes(&to->spec[i % to->n_rows], m->ops);
        m->ops->copy((char *)to->row[i] + (size_t)to_row * bytes,
                     (const char *)from->row[i] + (size_t)from_row * bytes, bytes);
    }
    to->pos[to_row] = from->pos[from_row];
}

// Logits of n rows of x to the host, without the padded columns.
static void logits_of(Model *m, Acts *a, const floatX *x, size_t n, float *logits) {
    size_t C = (size_t)m->C, V = (size_t)m->V, Vp = (size_t)m->Vp;
    float *rows = mem_alloc(min_size(n, (size_t)a->chunk) * Vp, sizeof(float));
    for (size_t at = 0; at < n; at += (size_t)a->chunk) {
        size_t k = min_size((size_t)a->chunk, n - at);
        m->ops->matmul(a->logits, Vp, fx_at(m->ops, x, at * C), C, model_head(m), NULL, 0, k);
        m->ops->softcap(a->logits, k * Vp, (float)m->cfg.model.logit_softcap);
        m->ops->download(rows, a->logits, k * Vp);
        for (size_t i = 0; i < k; i++)
            memcpy(logits + (at + i) * V, rows + i * Vp, V * sizeof(float));
    }
    mem_free(rows);
}

void model_extend(Model *m, Cache *c, const int *ids, int T, const int *n_new, float *logits,
                  bool all) {
    Acts *a = c->acts;
    const Ops *ops = m->ops;
    size_t C = (size_t)m->C, counts = (size_t)c->B * sizeof(int);
    assert(T >= 1 && T <= c->chunk);
    int max_pos = 0;
    for (int b = 0; b < c->B; b++) {
        assert(n_new[b] >= 0 && n_new[b] <= T && c->pos[b] + n_new[b] <= c->Tmax);
        max_pos = max_int(max_pos, c->pos[b] + n_new[b]);
    }
    AttnDims d = cache_dims(&m->cfg, ops, c->B, T, c->Tmax);
    ops->upload_bytes(a->ids, ids, counts * (size_t)T);
    ops->upload_bytes(c->device_pos, c->pos, counts);
    ops->upload_bytes(c->device_n_new, n_new, counts);
    model_trunk(m, a, &d, c, max_pos);
    for (int b = 0; b < c->B; b++)
        c->pos[b] += n_new[b];
    if (!logits) return;
    if (all) {
        logits_of(m, a, a->ln_f, (size_t)c->B * (size_t)T, logits);
        return;
    }
    for (int b = 0; b < c->B; b++) {
        size_t row = (size_t)b * (size_t)T + (size_t)max_int(n_new[b] - 1, 0);
        ops->copy(fx_at(ops, a->last, (size_t)b * C), fx_at(ops, a->ln_f, row * C),
                  C * ops->elem_size);
    }
    logits_of(m, a, a->last, (size_t)c->B, logits);
}
