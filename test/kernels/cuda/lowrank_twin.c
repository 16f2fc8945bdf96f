// lowrank_twin.c - see lowrank_twin.h
#include "test/kernels/cuda/lowrank_twin.h"

#include <math.h>
#include <string.h>

#include "test/ref_attention.h"

enum { LAST = LOWRANK_B - 1 };

static int tmax(const LowRankCase *c) {
    int max = 1;
    for (int b = 0; b < LOWRANK_B; b++)
        max = max_int(max, c->pos[b] + c->n_new[b]);
    return max;
}

// One plane of the cache on both sides: (LOWRANK_B, rows, width), in blocks of positions or not.
typedef struct Plane {
    void *cpu;
    char *gpu;
    size_t batch, n, shift;  // n: elements; shift: bytes of gpu behind its allocation
} Plane;

typedef enum Kind { SHARED_KEYS = 1, SHARED_VALUES, KEY_LATENTS, VALUE_LATENTS } Kind;

static Plane plane_new(const Ops *g, const LowRankCase *c, int width, Kind kind) {
    bool blocked = kind >= KEY_LATENTS;
    size_t rows = (size_t)tmax(c), w = (size_t)width, size = c->bf16 ? 2 : 4;
    if (blocked) rows = round_up(rows, LATENT_BLOCK);
    Plane p = {.batch = rows * w + (size_t)c->batch_pad};
    p.n = (LOWRANK_B - 1) * p.batch + rows * w, p.shift = c->shifted == (int)kind ? size : 0;
    p.cpu = mem_alloc(p.n, size), p.gpu = (char *)g->alloc(p.n * size + p.shift) + p.shift;
    float *x = mem_alloc(p.n, sizeof(float));
    test_noise(x, p.n, 1 + (uint64_t)kind, 1);
    for (size_t i = 0; i < p.n; i++) {
        size_t b = i / p.batch, at = i % p.batch;
        size_t position = blocked ? at / (64 * w) * 64 + at % 64 : at / w;
        // Keys are then +-1.5 plus a multiple of 1/64, all of a position the same.
        bool large = c->scores == SCORES_LARGE;
        if (large && kind == SHARED_KEYS) x[i] = (const float[]){-1.5f, 1.5f, 1.0f}[position % 3];
        if (large && kind == KEY_LATENTS) x[i] = (float)((int)(3 * fabsf(x[i])) - 1);
        if (position >= (size_t)(c->pos[b] + c->n_new[b])) x[i] = NAN;
        if (c->bf16)
            ((uint16_t *)p.cpu)[i] = bf16_from_f32(x[i]);
        else
            ((float *)p.cpu)[i] = x[i];
    }
    g->upload_bytes(p.gpu, p.cpu, p.n * size);
    mem_free(x);
    return p;
}

static void plane_free(const Ops *g, Plane *p) {
    mem_free(p->cpu);
    if (p->gpu) g->free(p->gpu - p->shift);
}

static SdpaArgs args_of(const LowRankCase *c) {
    size_t q = (size_t)c->NH * c->HS + 8 + (size_t)c->q_pad, o = (size_t)c->NH * c->HV,
           T = (size_t)c->T;
    SdpaArgs a = {.B = LOWRANK_B,
                  .Tq = c->T,
                  .Tk = tmax(c),
                  .NH = c->NH,
                  .NKV = c->NH,
                  .HS = c->HS,
                  .HV = c->HV,
                  .q_token = q,
                  .q_head = (size_t)c->HS,
                  .q_batch = T * q,
                  .o_token = o,
                  .o_head = (size_t)c->HV,
                  .o_batch = T * o,
                  .scale = 1.9f / sqrtf((float)c->HS),
                  .max_pos = tmax(c),
                  .kv_type = c->bf16 ? TYPE_BF16 : TYPE_F32};
    return a;
}

// bk, bv (NH, rows, ld_b) with NaN behind the r columns that count.
static Twin factors_new(const Ops *g, const LowRankCase *c, int rows, bool keys, uint64_t seed) {
    size_t n = (size_t)c->NH * rows * c->ld_b;
    float *x = mem_alloc(n, sizeof(float));
    test_noise(x, n, seed, 0.5f);
    for (size_t i = 0; i < n; i++) {
        bool up = x[i] > 0 || c->r == 1;  // of one rank, whole keys have the sign of the latent
        if (keys && c->scores == SCORES_LARGE) x[i] = up ? 1.0f / 64 : -1.0f / 64;
        if (i % (size_t)c->ld_b >= (size_t)c->r) x[i] = NAN;
    }
    Twin b = twin_of(g, TYPE_FX, x, n);
    mem_free(x);
    return b;
}

static Twin queries_new(const Ops *g, const LowRankCase *c, const SdpaArgs *a) {
    size_t n = LOWRANK_B * a->q_batch;
    if (c->scores == SCORES_NOISE) return twin_noise(g, TYPE_FX, n, 1, 1.2f);
    float *x = mem_alloc(n, sizeof(float));
    for (size_t i = 0; i < n; i++)
        x[i] = c->scores == SCORES_LARGE ? 80.0f / (a->scale * (float)c->HS) : 0;
    Twin q = twin_of(g, TYPE_FX, x, n);
    mem_free(x);
    return q;
}

// All of one call, on both sides.
typedef struct Call {
    LowRankCase c;
    SdpaArgs a, ga;  // the CPU's, the device's
    LowRankCache x, gx;
    int *gpos, *gnew;
    Plane ks, vs, zk, zv;
    Twin q, out, bk, bv, bias_k, bias_v, rope;
} Call;

static void call_caches(Call *k, const Ops *g) {
    const LowRankCase *c = &k->c;
    bool shared_z = c->mla != c->other_z;
    int n_z = shared_z ? c->r : c->NH * c->r;
    Plane none = {0};
    k->ks = c->mla != c->other_ks ? none : plane_new(g, c, c->HS, SHARED_KEYS);
    k->vs = c->mla != c->other_vs ? none : plane_new(g, c, c->HV, SHARED_VALUES);
    k->zk = plane_new(g, c, n_z, KEY_LATENTS);
    k->zv = c->mla && !c->apart ? k->zk : plane_new(g, c, n_z, VALUE_LATENTS);
    LowRankCache x = {.r = c->r,
                      .ld_b = c->ld_b,
                      .shared_z = shared_z,
                      .n_zk = n_z,
                      .n_zv = n_z,
                      .ks_batch = k->ks.batch,
                      .vs_batch = k->vs.batch,
                      .zk_batch = k->zk.batch,
                      .zv_batch = k->zv.batch,
                      .norm = c->norm,
                      .eps = 1e-6f};
    k->x = k->gx = x;
    k->x.ks = k->ks.cpu, k->x.vs = k->vs.cpu, k->x.zk = k->zk.cpu, k->x.zv = k->zv.cpu;
    k->gx.ks = k->ks.gpu, k->gx.vs = k->vs.gpu, k->gx.zk = k->zk.gpu, k->gx.zv = k->zv.gpu;
}

static void call_new(Call *k, const Ops *g, LowRankCase c) {
    k->c = c;
    for (int b = 0; b < LOWRANK_B; b++)
        k->c.pos[b] = c.pos[LAST - b], k->c.n_new[b] = c.n_new[LAST - b];
    k->a = args_of(&c), k->ga = k->a;
    k->gpos = twin_ints(g, k->c.pos, LOWRANK_B), k->gnew = twin_ints(g, k->c.n_new, LOWRANK_B);
    k->a.pos = k->c.pos, k->a.n_new = k->c.n_new, k->ga.pos = k->gpos, k->ga.n_new = k->gnew;
    call_caches(k, g);
    k->q = queries_new(g, &c, &k->a);
    k->out = twin_noise(g, TYPE_FX, LOWRANK_B * k->a.o_batch, 6, 1);
    k->bk = factors_new(g, &c, c.HS, true, 7), k->bv = factors_new(g, &c, c.HV, false, 8);
    k->bias_k = twin_noise(g, TYPE_F32, (size_t)c.NH * c.HS, 9, 1);
    k->bias_v = twin_noise(g, TYPE_F32, (size_t)c.NH * c.HV, 10, 1);
    float *table = ref_rope_table(tmax(&c), c.HS, 1000);
    k->rope = twin_of(g, TYPE_F32, table, (size_t)tmax(&c) * c.HS);
    mem_free(table);
    k->x.bk = cpu(k->bk), k->x.bv = cpu(k->bv), k->gx.bk = gpu(k->bk), k->gx.bv = gpu(k->bv);
    if (c.rope) k->x.rope = k->rope.cpu, k->gx.rope = k->rope.gpu;
    if (c.bias) k->x.bias_k = k->bias_k.cpu, k->gx.bias_k = k->bias_k.gpu;
    if (c.bias) k->x.bias_v = k->bias_v.cpu, k->gx.bias_v = k->bias_v.gpu;
}

static void call_free(TestCtx *t, const Ops *g, Call *k) {
    TWIN_FREE(t, g, &k->q, &k->out, &k->bk, &k->bv, &k->bias_k, &k->bias_v, &k->rope);
    plane_free(g, &k->ks), plane_free(g, &k->vs), plane_free(g, &k->zk);
    if (k->zv.cpu != k->zk.cpu) plane_free(g, &k->zv);
    g->free(k->gpos), g->free(k->gnew);
}

void lowrank_twin_extend(TestCtx *t, const Ops *g, LowRankCase c) {
    Call k;
    call_new(&k, g, c);
    ops_cpu()->sdpa_lowrank_extend(cpu(k.out), cpu(k.q), &k.x, &k.a);
    g->sdpa_lowrank_extend(gpu(k.out), gpu(k.q), &k.gx, &k.ga);
    // In bf16 keys are rounded before the scores.
    double tol = is_bf16(g) ? 2 * 0x1p-7 : 8 * sum_tol((size_t)k.a.Tk);
    TWIN_CHECK(t, g, k.out, tol, 1e-6);
    call_free(t, g, &k);
}

void lowrank_twin_poison(TestCtx *t, const Ops *g, LowRankCase c, int at, float bad) {
    Call k;
    call_new(&k, g, c);
    const Plane *planes[] = {&k.ks, &k.vs, &k.zk, &k.zv};
    g->sdpa_lowrank_extend(gpu(k.out), gpu(k.q), &k.gx, &k.ga);
    float *clean = twin_download(g, &k.out);
    for (int p = 0; p < 4; p++) {
        if (!planes[p]->cpu) continue;
        size_t rows = p < 2 ? (size_t)c.HS : (size_t)k.x.n_zk, n = planes[p]->n;
        size_t row = LAST * planes[p]->batch, past = (size_t)(LAST * c.T + at) * k.a.o_token;
        size_t position = (size_t)(c.pos[0] + at), size = c.bf16 ? 2 : 4;
        char *x = mem_alloc(n, size);
        memcpy(x, planes[p]->cpu, n * size);
        for (size_t i = 0; i < rows; i += p < 2 ? rows : (size_t)c.r) {
            size_t block = position / 64 * 64;
            size_t to = row + (p < 2 ? position * rows + i : block * rows + i * 64 + position % 64);
            if (c.bf16)
                ((uint16_t *)x)[to] = bf16_from_f32(bad);
            else
                ((float *)x)[to] = bad;
        }
        g->upload_bytes(planes[p]->gpu, x, n * size);
        g->sdpa_lowrank_extend(gpu(k.out), gpu(k.q), &k.gx, &k.ga);
        twin_check_past(t, g, &k.out, clean, past, k.a.o_token, (size_t)c.HV);
        g->upload_bytes(planes[p]->gpu, planes[p]->cpu, n * size);
        mem_free(x);
    }
    mem_free(clean);
    call_free(t, g, &k);
}
