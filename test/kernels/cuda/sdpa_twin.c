// sdpa_twin.c - see sdpa_twin.h.
#include "test/kernels/cuda/sdpa_twin.h"

#include <math.h>
#include <string.h>

static SdpaArgs packed_args(const SdpaCase *c) {
    size_t q = (size_t)c->NH * c->HS, k = (size_t)c->NKV * c->HS, v = (size_t)c->NKV * c->HV;
    size_t row = q + k + v + (size_t)c->pad, o = (size_t)c->NH * c->HV, T = (size_t)c->T;
    return (SdpaArgs){.B = c->B,
                      .Tq = c->T,
                      .Tk = c->T,
                      .NH = c->NH,
                      .NKV = c->NKV,
                      .HS = c->HS,
                      .HV = c->HV,
                      .q_token = row,
                      .k_token = row,
                      .v_token = row,
                      .o_token = o,
                      .q_head = (size_t)c->HS,
                      .k_head = (size_t)c->HS,
                      .v_head = (size_t)c->HV,
                      .o_head = (size_t)c->HV,
                      .q_batch = T * row,
                      .k_batch = T * row,
                      .v_batch = T * row,
                      .o_batch = T * o,
                      .scale = c->scale != 0 ? c->scale : 1 / sqrtf((float)c->HS),
                      .any_order = c->any_order,
                      .kv_type = TYPE_FX};
}

// The same with arrays of their own, and c->odd_stride.
static SdpaArgs spread_args(const SdpaCase *c) {
    SdpaArgs a = packed_args(c);
    size_t *strides[4][3] = {{&a.q_head, &a.q_token, &a.q_batch},
                             {&a.k_head, &a.k_token, &a.k_batch},
                             {&a.v_head, &a.v_token, &a.v_batch},
                             {&a.o_head, &a.o_token, &a.o_batch}};
    int width[] = {c->HS, c->HS, c->HV, c->HV}, heads[] = {c->NH, c->NKV, c->NKV, c->NH};
    for (int i = 0; i < 4; i++) {
        size_t within = (size_t)width[i], count[] = {(size_t)heads[i], (size_t)c->T};
        for (int j = 0; j < 3; j++) {
            *strides[i][j] = within + (c->odd_stride == 3 * i + j + 1 ? 4 : 0);
            if (j < 2) within = round_up(count[j] * *strides[i][j], 8);
        }
    }
    return a;
}

// Rows of [q | k | v], whose scores are as the case says.
static Twin inputs(const Ops *g, const SdpaCase *c, const SdpaArgs *a, size_t n) {
    size_t q = (size_t)c->NH * c->HS;
    size_t k = q + (size_t)c->NKV * c->HS, HS = (size_t)c->HS;
    float *x = mem_alloc(n, sizeof(float));
    test_noise(x, n, 1, 2);
    for (size_t i = 0; i < n && c->scores != SCORES_NOISE; i++) {
        size_t at = i % a->q_token;
        bool large = c->scores == SCORES_LARGE;
        if (at < q) x[i] = large ? 80.0f / (a->scale * (float)HS) : 0;
        if (large && at >= q && at < k) x[i] = (const float[]){1.5f, -1.5f, x[i] / 2}[i / HS % 3];
    }
    Twin t = twin_of(g, TYPE_FX, x, n);
    mem_free(x);
    return t;
}

// All of one call.
typedef struct Data {
    SdpaArgs a;
    size_t k_at, v_at, dk_at, dv_at;
    Twin x, out, lse, dout, dx;
} Data;

static Data data_new(const Ops *g, const SdpaCase *c) {
    Data d = {.a = c->odd_stride ? spread_args(c) : packed_args(c)};
    size_t B = (size_t)c->B, stats = B * (size_t)c->NH * c->T, n = B * d.a.q_batch;
    size_t q = (size_t)c->NH * c->HS, k = (size_t)c->NKV * c->HS;
    if (c->odd_stride)
        q = round_up(n, 8), k = round_up(B * d.a.k_batch, 8), n = q + k + B * d.a.v_batch;
    d.k_at = q + (size_t)c->k_gap, d.v_at = d.k_at + k + (size_t)c->v_gap;
    d.dk_at = q + (size_t)c->dk_gap, d.dv_at = d.dk_at + k + (size_t)c->dv_gap;
    d.x = inputs(g, c, &d.a, n);
    bool gaps = c->odd_stride != 0;  // nobody writes there
    d.out = gaps ? twin_noise(g, TYPE_FX, B * d.a.o_batch, 4, 1)
                 : twin_new(g, TYPE_FX, B * d.a.o_batch);
    d.lse = twin_new(g, TYPE_F32, stats);
    d.dout = twin_noise(g, TYPE_FX, B * d.a.o_batch, 2, 1);
    d.dx = twin_noise(g, TYPE_FX, n, 3, 1);
    return d;
}

static void run_forward(const Ops *g, Data *d) {
    floatX *q = gpu(d->x);
    g->sdpa_forward(gpu(d->out), (float *)d->lse.gpu, q, fx_at(g, q, d->k_at), fx_at(g, q, d->v_at),
                    &d->a);
}

static void run_gpu(const Ops *g, Data *d) {
    floatX *q = gpu(d->x), *k = fx_at(g, q, d->k_at), *v = fx_at(g, q, d->v_at), *dq = gpu(d->dx);
    float *lse = (float *)d->lse.gpu;
    run_forward(g, d);
    g->sdpa_backward(dq, fx_at(g, dq, d->dk_at), fx_at(g, dq, d->dv_at), gpu(d->dout), gpu(d->out),
                     lse, q, k, v, &d->a);
}

// The gradient of scores near 120 carries their roundings, and those of the output.
void sdpa_twin_training(TestCtx *t, const Ops *g, SdpaCase c) {
    const Ops *o = ops_cpu();
    Data d = data_new(g, &c);
    floatX *q = cpu(d.x), *k = fx_at(o, q, d.k_at), *v = fx_at(o, q, d.v_at), *dq = cpu(d.dx);
    o->sdpa_forward(cpu(d.out), d.lse.cpu, q, k, v, &d.a);
    o->sdpa_backward(dq, fx_at(o, dq, d.dk_at), fx_at(o, dq, d.dv_at), cpu(d.dout), cpu(d.out),
                     d.lse.cpu, q, k, v, &d.a);
    run_gpu(g, &d);
    // On tensor cores P and dS are rounded to bf16; sums are fp32.
    double sums = (c.scores == SCORES_LARGE ? 32 : 4) * sum_tol((size_t)(c.T + c.HS));
    double tol = sums + (is_bf16(g) ? 1.5 * 0x1p-8 : 0);
    TWIN_CHECK(t, g, d.out, tol, 0);
    TWIN_CHECK(t, g, d.lse, 4 * sum_tol((size_t)(c.T + c.HS)), 1e-6);
    TWIN_CHECK(t, g, d.dx, 2 * tol, 0);
    TWIN_FREE(t, g, &d.x, &d.out, &d.lse, &d.dout, &d.dx);
}

void *sdpa_twin_bits(TestCtx *t, const Ops *g, SdpaCase c, size_t *bytes) {
    Data d = data_new(g, &c);
    run_gpu(g, &d);
    size_t n = (d.out.n + d.dx.n) * g->elem_size;
    *bytes = n + d.lse.n * sizeof(float);
    char *bits = mem_alloc(*bytes, 1);
    g->download_bytes(bits, d.out.gpu, d.out.n * g->elem_size);
    g->download_bytes(bits + d.out.n * g->elem_size, d.dx.gpu, d.dx.n * g->elem_size);
    g->download_bytes(bits + n, d.lse.gpu, d.lse.n * sizeof(float));
    TWIN_FREE(t, g, &d.x, &d.out, &d.lse, &d.dout, &d.dx);
    return bits;
}

enum { ROWS = 3, LAST = ROWS - 1 };

// The cache on both sides, NaN behind each row's end; on the device behind `shift` elements.
static void *cache_new(const Ops *g, const SdpaArgs *a, const int *pos, const int *n_new,
                       size_t shift, char **device) {
    size_t n = ROWS * a->k_batch, size = a->kv_type == TYPE_BF16 ? 2 : 4;
    float *x = mem_alloc(n, sizeof(float));
    test_noise(x, n, 3, 2);
    for (size_t b = 0; b < ROWS; b++) {
        for (size_t i = (size_t)(pos[b] + n_new[b]) * a->k_token; i < a->k_batch; i++)
            x[b * a->k_batch + i] = NAN;
    }
    void *host = mem_alloc(n, size);
    for (size_t i = 0; i < n; i++) {
        if (size == 2)
            ((uint16_t *)host)[i] = bf16_from_f32(x[i]);
        else
            ((float *)host)[i] = x[i];
    }
    *device = g->alloc((n + shift) * size);
    g->upload_bytes(*device + shift * size, host, n * size);
    mem_free(x);
    return host;
}

// All of one call over a cache: q, the cache and out on both sides.
typedef struct Extend {
    SdpaArgs a, ga;  // the CPU's, the device's
    int pos[ROWS], n_new[ROWS], *gpos, *gnew;
    size_t v_at, bytes;     // elements from k to v; of an element
    char *k, *gk, *gk_all;  // gk_all: the device's allocation
    Twin q, out;
} Extend;

static void extend_new(Extend *e, const Ops *g, const SdpaCase *c, const SdpaCache *cache) {
    size_t keys = (size_t)c->NKV * c->HS, values = (size_t)c->NKV * c->HV;
    size_t row = cache->prefix ? keys : keys + values + (size_t)c->pad,
           Tmax = (size_t)(cache->far + c->T);
    SdpaArgs a = packed_args(c);
    int pos[ROWS] = {(int)Tmax, 0, cache->far}, n_new[ROWS] = {0, c->T > 1 ? c->T - 1 : 1, c->T};
    if (cache->idle_last)
        pos[0] = cache->far, n_new[0] = c->T, pos[LAST] = (int)Tmax, n_new[LAST] = 0;
    memcpy(e->pos, pos, sizeof pos), memcpy(e->n_new, n_new, sizeof n_new);
    e->gpos = twin_ints(g, pos, ROWS), e->gnew = twin_ints(g, n_new, ROWS);
    a.B = ROWS, a.Tk = (int)Tmax, a.k_token = a.v_token = row, a.k_batch = a.v_batch = Tmax * row;
    if (cache->prefix) a.v_head = a.k_head;
    if (cache->close_values) a.v_token -= 64;
    if (cache->one_row) a.v_batch = 0;
    a.kv_type = cache->bf16 ? TYPE_BF16 : TYPE_F32, a.max_pos = cache->far + c->T;
    e->v_at = cache->prefix ? 0 : keys + (size_t)c->v_gap, e->bytes = cache->bf16 ? 2 : 4;
    e->q = twin_noise(g, TYPE_FX, ROWS * a.q_batch, 1, 2);
    e->out = twin_noise(g, TYPE_FX, ROWS * a.o_batch, 2, 1);
    e->k = cache_new(g, &a, pos, n_new, cache->shift, &e->gk_all);
    e->gk = e->gk_all + cache->shift * e->bytes;
    e->a = e->ga = a;
    e->a.pos = e->pos, e->a.n_new = e->n_new, e->ga.pos = e->gpos, e->ga.n_new = e->gnew;
}

static void extend_free(TestCtx *t, const Ops *g, Extend *e) {
    TWIN_FREE(t, g, &e->q, &e->out);
    g->free(e->gk_all), g->free(e->gpos), g->free(e->gnew);
    mem_free(e->k);
}

static void extend_gpu(const Ops *g, const Extend *e) {
    g->sdpa_extend(gpu(e->out), gpu(e->q), e->gk, e->gk + e->v_at * e->bytes, &e->ga);
}

void sdpa_twin_extend(TestCtx *t, const Ops *g, SdpaCase c, SdpaCache cache) {
    Extend e;
    extend_new(&e, g, &c, &cache);
    ops_cpu()->sdpa_extend(cpu(e.out), cpu(e.q), e.k, e.k + e.v_at * e.bytes, &e.a);
    extend_gpu(g, &e);
    double tol = 4 * sum_tol((size_t)(e.a.Tk + c.HS)) + (is_bf16(g) ? 1.5 * 0x1p-8 : 0);
    TWIN_CHECK(t, g, e.out, tol, 0);
    extend_free(t, g, &e);
}

// x (n) becomes what is not finite: a key or value all NaN, or one infinity in a value.
typedef enum Poison { KEY_NAN, VALUE_NAN, VALUE_INF, N_POISONS } Poison;

static void poison(float *x, size_t n, Poison kind) {
    for (size_t i = 0; i < n; i++) {
        if (kind != VALUE_INF) x[i] = NAN;
    }
    if (kind == VALUE_INF) x[n / 3] = INFINITY;
}

void sdpa_twin_poison(TestCtx *t, const Ops *g, SdpaCase c, int at) {
    Data d = data_new(g, &c);
    SdpaArgs *a = &d.a;
    size_t width[] = {(size_t)c.HS, (size_t)c.HV, (size_t)c.HV}, row = a->o_token;
    run_forward(g, &d);
    float *clean = twin_download(g, &d.out);
    for (int kind = 0; kind < N_POISONS; kind++) {
        float *x = mem_alloc(d.x.n, sizeof *x);
        memcpy(x, d.x.cpu, d.x.n * sizeof *x);
        size_t head = (size_t)at * a->q_token + (kind == KEY_NAN ? d.k_at : d.v_at);
        poison(x + head, width[kind], (Poison)kind);
        g->upload(gpu(d.x), x, d.x.n);
        run_forward(g, &d);
        twin_check_past(t, g, &d.out, clean, (size_t)at * row, row, (size_t)c.HV);
        mem_free(x);
    }
    mem_free(clean);
    TWIN_FREE(t, g, &d.x, &d.out, &d.lse, &d.dout, &d.dx);
}

void sdpa_twin_extend_poison(TestCtx *t, const Ops *g, SdpaCase c, SdpaCache cache, int at) {
    Extend e;
    extend_new(&e, g, &c, &cache);
    size_t width[] = {(size_t)c.HS, (size_t)c.HV, (size_t)c.HV}, row = e.a.k_token;
    size_t cached = ROWS * e.a.k_batch, token = LAST * (size_t)e.a.Tk + (size_t)(cache.far + at);
    size_t past = (size_t)(LAST * e.a.Tq + at);  // tokens before it
    extend_gpu(g, &e);
    float *clean = twin_download(g, &e.out);
    for (int kind = 0; kind < N_POISONS; kind++) {
        char *k = mem_alloc(cached, e.bytes);
        float *x = mem_alloc(width[kind], sizeof *x);
        size_t head = token * row + (kind == KEY_NAN ? 0 : e.v_at);
        memcpy(k, e.k, cached * e.bytes);
        for (size_t i = 0; i < width[kind]; i++)
            x[i] =
                e.bytes == 2 ? bf16_to_f32(((uint16_t *)e.k)[head + i]) : ((float *)e.k)[head + i];
        poison(x, width[kind], (Poison)kind);
        for (size_t i = 0; i < width[kind]; i++) {
            if (e.bytes == 2)
                ((uint16_t *)k)[head + i] = bf16_from_f32(x[i]);
            else
                ((float *)k)[head + i] = x[i];
        }
        g->upload_bytes(e.gk, k, cached * e.bytes);
        extend_gpu(g, &e);
        twin_check_past(t, g, &e.out, clean, past * e.a.o_token, e.a.o_token, (size_t)c.HV);
        mem_free(k), mem_free(x);
    }
    mem_free(clean);
    extend_free(t, g, &e);
}
