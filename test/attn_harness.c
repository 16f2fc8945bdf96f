// attn_harness.c - see attn_harness.h. Memory is laid out as the model lays it out.
#include "test/attn_harness.h"

#include <string.h>

#include "gpt/rng.h"
#include "test/ref_attention.h"

// Uncleared memory may hold anything: here all bits set, NaN in fp32 and in bf16.
static void *alloc_nan(const Ops *ops, size_t bytes) {
    unsigned char *ones = mem_alloc(bytes, 1);
    memset(ones, 0xFF, bytes);
    void *p = ops->alloc(bytes);
    ops->upload_bytes(p, ones, bytes);
    ops->sync();
    mem_free(ones);
    return p;
}

static void *upload_new(const Ops *ops, const void *host, size_t bytes) {
    void *p = ops->alloc(bytes);
    ops->upload_bytes(p, host, bytes);
    ops->sync();
    return p;
}

static int joined_rows(const TensorTable *t, int i) {
    int rows = spec_rows(&t->tensor[i].spec);
    for (int j = i + 1; !t->tensor[i].spec.join && j < t->n && t->tensor[j].spec.join; j++)
        rows += spec_rows(&t->tensor[j].spec);
    return rows;
}

static void pack(AttnHarness *h, Weight *w) {
    size_t bytes = h->ops->weight_bytes(w->OC, w->IC, w->compute);
    if (!bytes) return;
    w->forward = h->packed[h->n_packed++] = alloc_nan(h->ops, bytes);
    w->backward = h->packed[h->n_packed++] = alloc_nan(h->ops, bytes);
}

static void create_params(AttnHarness *h, uint64_t seed) {
    TensorSpec rows[ATTN_MAX_TENSORS] = {{0}};
    h->params.elem_size = h->ops->elem_size;
    tensor_table_add(&h->params, "", 0, rows, h->attn->params(rows, &h->d));
    h->param_arena = h->ops->alloc(h->params.bytes);
    h->grad_arena = h->ops->alloc(h->params.elements * sizeof(float));
    for (int i = 0; i < h->params.n; i++) {
        const Tensor *t = &h->params.tensor[i];
        size_t n = spec_logical(&t->spec);
        h->value[i] = mem_alloc(n, sizeof(float));
        float std = t->spec.init == INIT_NORMAL && t->spec.std > 0.1f ? t->spec.std : 0.3f;
        test_noise(h->value[i], n, rng_key(seed, t->name), 1.7f * std);
        h->weight[i] = (Weight){.data = (floatX *)(void *)(h->param_arena + t->bytes_at),
                                .OC = joined_rows(&h->params, i),
                                .IC = spec_cols(&t->spec),
                                .compute = h->d.compute};
        h->dw[i] = h->grad_arena + t->offset;
        if (t->spec.kind == KIND_MATRIX && !t->spec.join && !t->spec.raw) pack(h, &h->weight[i]);
    }
}

static void create_derived(AttnHarness *h) {
    if (!h->attn->derived) return;
    h->n_derived = h->attn->derived(h->derived_row, &h->d);
    for (int i = 0; i < h->n_derived; i++) {
        const TensorSpec *s = &h->derived_row[i];
        size_t n = spec_stored(s), size = elem_bytes(s->type, h->ops->elem_size);
        h->derived[i] = (Weight){.data = alloc_nan(h->ops, n * size),
                                 .OC = spec_rows(s),
                                 .IC = spec_cols(s),
                                 .compute = h->d.compute};
        h->dderived[i] = h->ops->alloc(n * sizeof(float));
        if (!s->raw) pack(h, &h->derived[i]);
    }
}

static void create_activations(AttnHarness *h) {
    TensorSpec rows[ATTN_MAX_TENSORS] = {{0}};
    h->n_saved = h->attn->saved(rows, &h->d);
    for (int i = 0; i < h->n_saved; i++)
        h->saved[i] =
            alloc_nan(h->ops, spec_stored(&rows[i]) * elem_bytes(rows[i].type, h->ops->elem_size));
    memset(rows, 0, sizeof rows);
    h->n_cache = h->attn->cache(rows, &h->d);
    for (int i = 0; i < h->n_cache; i++) {
        h->cache_bytes[i] = (size_t)h->d.B * spec_stored(&rows[i]) * elem_bytes(rows[i].type, 0);
        h->cache[i] = alloc_nan(h->ops, h->cache_bytes[i]);
    }
    h->scratch = alloc_nan(h->ops, h->attn->scratch(&h->d));
    h->extend_scratch = alloc_nan(h->ops, h->attn->extend_scratch(&h->d));
    int width = attention_rope_width(&h->d), places = 2 * max_int(h->d.Tmax, h->d.T);
    if (width) {
        h->rope_host = ref_rope_table(places, width, 10000);
        h->rope = upload_new(h->ops, h->rope_host, (size_t)places * (size_t)width * sizeof(float));
    }
    h->pos = h->ops->alloc((size_t)h->d.B * sizeof(int));
    h->n_new = h->ops->alloc((size_t)h->d.B * sizeof(int));
}

AttnHarness *harness_new(const Ops *ops, const char *variant, AttnDims d, uint64_t seed) {
    AttnHarness *h = mem_alloc(1, sizeof *h);
    h->ops = ops, h->d = d;
    h->attn = attention_find(variant);
    if (!h->attn) die("no attention variant '%s'", variant);
    const char *why = h->attn->check(&d);
    if (why) die("%s: %s", variant, why);
    create_params(h, seed);
    create_derived(h);
    create_activations(h);
    harness_load(h);
    return h;
}

void harness_free(AttnHarness *h) {
    const Ops *ops = h->ops;
    for (int i = 0; i < h->params.n; i++)
        mem_free(h->value[i]);
    for (int i = 0; i < h->n_derived; i++)
        ops->free((void *)h->derived[i].data), ops->free(h->dderived[i]);
    for (int i = 0; i < h->n_packed; i++)
        ops->free(h->packed[i]);
    for (int i = 0; i < h->n_saved; i++)
        ops->free(h->saved[i]);
    for (int i = 0; i < h->n_cache; i++)
        ops->free(h->cache[i]);
    ops->free(h->param_arena), ops->free(h->grad_arena);
    ops->free(h->scratch), ops->free(h->extend_scratch), ops->free(h->rope);
    ops->free(h->pos), ops->free(h->n_new);
    mem_free(h->rope_host);
    tensor_table_free(&h->params);
    mem_free(h);
}

int harness_row(const AttnHarness *h, const char *name) {
    int row = tensor_find(&h->params, name);
    if (row < 0) die("%s has no tensor '%s'", h->attn->name, name);
    return row;
}

size_t harness_size(const AttnHarness *h, int row) {
    return spec_logical(&h->params.tensor[row].spec);
}

static AttnCall call_of(AttnHarness *h) {
    return (AttnCall){.ops = h->ops,
                      .d = h->d,
                      .w = h->weight,
                      .dw = h->dw,
                      .saved = h->saved,
                      .derived = h->derived,
                      .dderived = h->dderived,
                      .cache = h->cache,
                      .rope = h->rope,
                      .scratch = h->scratch};
}

void harness_load(AttnHarness *h) {
    for (int i = 0; i < h->params.n; i++) {
        const Tensor *t = &h->params.tensor[i];
        size_t n = spec_stored(&t->spec);
        float *stored = mem_alloc(n, sizeof(float));
        tensor_to_stored(stored, h->value[i], &t->spec);
        void *dst = h->param_arena + t->bytes_at;
        if (t->spec.type == TYPE_FX)
            h->ops->upload(dst, stored, n);
        else
            h->ops->upload_bytes(dst, stored, n * sizeof(float));
        h->ops->sync();
        mem_free(stored);
    }
    for (int i = 0; i < h->params.n; i++) {
        if (h->weight[i].forward) h->ops->weight_prepare(&h->weight[i]);
    }
    if (!h->n_derived) return;
    AttnCall c = call_of(h);
    h->attn->prepare(&c);
    for (int i = 0; i < h->n_derived; i++) {
        if (h->derived[i].forward) h->ops->weight_prepare(&h->derived[i]);
    }
}

static size_t activations(const AttnHarness *h, int T) {
    return (size_t)h->d.B * (size_t)T * (size_t)h->d.C;
}

static floatX *activations_new(const AttnHarness *h, const float *host, size_t n) {
    floatX *p = alloc_nan(h->ops, n * h->ops->elem_size);
    if (host) h->ops->upload(p, host, n);
    return p;
}

void harness_forward(AttnHarness *h, float *out, const float *x) {
    size_t n = activations(h, h->d.T);
    AttnCall c = call_of(h);
    floatX *xd = activations_new(h, x, n), *y = activations_new(h, NULL, n);
    h->attn->forward(&c, y, xd);
    h->ops->download(out, y, n);
    h->ops->free(xd), h->ops->free(y);
}

void harness_backward(AttnHarness *h, float *dx, const float *dout, const float *x) {
    size_t n = activations(h, h->d.T);
    AttnCall c = call_of(h);
    h->ops->zero(h->grad_arena, h->params.elements * sizeof(float));
    for (int i = 0; i < h->n_derived; i++)
        h->ops->zero(h->dderived[i], spec_stored(&h->derived_row[i]) * sizeof(float));
    floatX *xd = activations_new(h, x, n), *dy = activations_new(h, dout, n);
    floatX *dxd = activations_new(h, NULL, n);
    h->attn->backward(&c, dxd, dy, xd);
    if (h->n_derived) h->attn->finish(&c);
    h->ops->download(dx, dxd, n);
    h->ops->free(xd), h->ops->free(dy), h->ops->free(dxd);
}

float *harness_grad(const AttnHarness *h, int row) {
    const TensorSpec *s = &h->params.tensor[row].spec;
    size_t n = spec_stored(s);
    float *stored = mem_alloc(n, sizeof(float));
    float *logical = mem_alloc(spec_logical(s), sizeof(float));
    h->ops->download_bytes(stored, h->dw[row], n * sizeof(float));
    tensor_to_logical(logical, stored, s);
    mem_free(stored);
    return logical;
}

void harness_clear_cache(AttnHarness *h) {
    for (int i = 0; i < h->n_cache; i++) {
        h->ops->free(h->cache[i]);
        h->cache[i] = alloc_nan(h->ops, h->cache_bytes[i]);
    }
}

void harness_extend(AttnHarness *h, float *out, const float *x, int T, const int *pos,
                    const int *n_new) {
    size_t n = activations(h, T), bytes = (size_t)h->d.B * sizeof(int);
    AttnCall c = call_of(h);
    c.d.T = T;
    c.scratch = h->extend_scratch, c.pos = h->pos, c.n_new = h->n_new;
    for (int b = 0; b < h->d.B; b++)
        c.max_pos = max_int(c.max_pos, pos[b] + n_new[b]);
    h->ops->upload_bytes(h->pos, pos, bytes);
    h->ops->upload_bytes(h->n_new, n_new, bytes);
    floatX *xd = activations_new(h, x, n), *y = activations_new(h, NULL, n);
    h->attn->extend(&c, y, xd);
    h->ops->download(out, y, n);
    h->ops->free(xd), h->ops->free(y);
}
