// test_lowrank_extend.c - attention over cached latents (LRKV, MLA with reconstructed keys), every
// instruction set against the double reference. The cache is NaN behind every sequence's end.
#include <math.h>
#include <string.h>

#include "test/arrays.h"
#include "test/ref_attention.h"

enum { MAX_B = 3 };

// dst (rows, width) from src, rows ld apart.
static double *compact(const float *src, size_t rows, size_t width, size_t ld) {
    double *d = doubles_new(rows * width);
    for (size_t n = 0; n < rows; n++) {
        for (size_t i = 0; i < width; i++)
            d[n * width + i] = (double)src[n * ld + i];
    }
    return d;
}

// LRKV: shared rows, latents of each head. MLA: no shared rows, every head reads the same latents.
typedef struct Cached {
    int B, T, Tmax, NH, HS, HV, r, ld_b;
    bool mla, rope, norm, bias;
    ElemType type;
    int pos[MAX_B], n_new[MAX_B];
} Cached;

typedef struct CachedData {
    Cached c;
    SdpaArgs a;
    LowRankCache cache;
    int n_z;
    size_t n_o;
    float *q, *ks, *vs, *zk, *zv;  // (B, T, NH*HS), then (B, Tmax, width), as the cache holds them
    float *bk, *bv, *bias_k, *bias_v, *rope;
    void *stored[4];
    double *expected;  // (B, T, NH, HV)
} CachedData;

static void store(void *dst, size_t i, float x, ElemType type) {
    if (type == TYPE_BF16)
        ((uint16_t *)dst)[i] = bf16_from_f32(x);
    else
        ((float *)dst)[i] = x;
}

// Rounds x (B, Tmax, width) to the cache type and stores it, blocked or not; NaN behind the ends.
static void *store_rows(const Cached *c, float *x, int width, bool blocked) {
    size_t w = (size_t)width,
           rows = blocked ? round_up((size_t)c->Tmax, LATENT_BLOCK) : (size_t)c->Tmax;
    void *dst = mem_alloc((size_t)c->B * rows * w, 4);
    for (size_t i = 0; i < (size_t)c->B * rows * w; i++)
        store(dst, i, NAN, c->type);
    for (size_t b = 0; b < (size_t)c->B; b++) {
        size_t end = (size_t)(c->pos[b] + c->n_new[b]);
        for (size_t p = 0; p < end; p++) {
            for (size_t i = 0; i < w; i++) {
                float *v = &x[(b * (size_t)c->Tmax + p) * w + i];
                if (c->type == TYPE_BF16) *v = bf16_to_f32(bf16_from_f32(*v));
                size_t at = blocked ? p / 64 * w * 64 + i * 64 + p % 64 : p * w + i;
                store(dst, b * rows * w + at, *v, c->type);
            }
        }
    }
    return dst;
}

// Factors (NH, rows, ld_b) with NaN behind the r columns that count.
static float *factors_new(const Cached *c, int rows, uint64_t seed) {
    size_t n = (size_t)(c->NH * rows), ld = (size_t)c->ld_b;
    float *b = floats_noise(n * ld, seed, 0.5f);
    for (size_t i = 0; i < n * ld; i++) {
        if (i % ld >= (size_t)c->r) b[i] = NAN;
    }
    return b;
}

static void cached_expect(CachedData *d) {
    const Cached *c = &d->c;
    size_t HS = (size_t)c->HS, HV = (size_t)c->HV, NH = (size_t)c->NH, r = (size_t)c->r;
    double *bk = compact(d->bk, NH * HS, r, (size_t)c->ld_b),
           *bv = compact(d->bv, NH * HV, r, (size_t)c->ld_b);
    double *bias_k = doubles_of(d->bias_k, NH * HS), *bias_v = doubles_of(d->bias_v, NH * HV);
    d->expected = doubles_new((size_t)(c->B * c->T) * NH * HV);
    for (int b = 0; b < c->B; b++) {
        size_t at = (size_t)b * (size_t)c->Tmax, end = (size_t)(c->pos[b] + c->n_new[b]);
        double *k = doubles_new((end + 1) * NH * HS), *v = doubles_new((end + 1) * NH * HV);
        RefLowRank a = {.B = 1,
                        .T = (int)end,
                        .NH = c->NH,
                        .HS = c->HS,
                        .R = c->r,
                        .shared_z = c->mla,
                        .norm = c->norm,
                        .eps = 1e-6f};
        if (c->rope) a.rope = d->rope;
        if (c->bias) a.bias = bias_k;
        size_t n_z = (size_t)d->n_z;
        double *ks = c->mla ? NULL : doubles_of(d->ks + at * HS, end * HS),
               *zk = doubles_of(d->zk + at * n_z, end * n_z);
        ref_lowrank_forward(k, ks, zk, bk, &a);
        double *vs = c->mla ? NULL : doubles_of(d->vs + at * HV, end * HV),
               *zv = doubles_of(d->zv + at * n_z, end * n_z);
        a.HS = c->HV, a.rope = NULL, a.norm = false, a.bias = c->bias ? bias_v : NULL;
        ref_lowrank_forward(v, vs, zv, bv, &a);
        RefSdpa s = {.B = 1,
                     .Tq = c->n_new[b],
                     .Tk = (int)end,
                     .NH = c->NH,
                     .NKV = c->NH,
                     .HS = c->HS,
                     .HV = c->HV,
                     .scale = (double)d->a.scale,
                     .pos = c->pos + b};
        double *q = doubles_of(d->q + (size_t)(b * c->T) * NH * HS, (size_t)c->T * NH * HS);
        ref_sdpa_forward(d->expected + (size_t)(b * c->T) * NH * HV, NULL, q, k, v, &s);
        mem_free(k), mem_free(v), mem_free(ks), mem_free(zk), mem_free(vs), mem_free(zv),
            mem_free(q);
    }
    mem_free(bk), mem_free(bv), mem_free(bias_k), mem_free(bias_v);
}

static void cached_point(CachedData *d) {
    const Cached *c = &d->c;
    size_t HS = (size_t)c->HS, HV = (size_t)c->HV, heads = (size_t)c->NH;
    d->a = (SdpaArgs){
        .B = c->B, .Tq = c->T, .Tk = c->Tmax, .NH = c->NH, .NKV = c->NH, .HS = c->HS, .HV = c->HV};
    d->a.q_token = heads * HS, d->a.q_head = HS, d->a.q_batch = (size_t)c->T * heads * HS;
    d->a.o_token = heads * HV, d->a.o_head = HV, d->a.o_batch = (size_t)c->T * heads * HV;
    d->a.scale = 1.9f / sqrtf((float)c->HS);
    d->a.pos = c->pos, d->a.n_new = c->n_new, d->a.kv_type = c->type;
    size_t z_batch = round_up((size_t)c->Tmax, LATENT_BLOCK) * (size_t)d->n_z;
    d->cache = (LowRankCache){.ks = d->stored[0],
                              .vs = d->stored[1],
                              .zk = d->stored[2],
                              .zv = d->stored[3],
                              .bk = fx(d->bk),
                              .bv = fx(d->bv),
                              .bias_k = c->bias ? d->bias_k : NULL,
                              .bias_v = c->bias ? d->bias_v : NULL,
                              .r = c->r,
                              .ld_b = c->ld_b,
                              .shared_z = c->mla,
                              .n_zk = d->n_z,
                              .n_zv = d->n_z,
                              .ks_batch = (size_t)c->Tmax * HS,
                              .vs_batch = (size_t)c->Tmax * HV,
                              .zk_batch = z_batch,
                              .zv_batch = z_batch,
                              .rope = c->rope ? d->rope : NULL,
                              .norm = c->norm,
                              .eps = 1e-6f};
}

static CachedData *cached_new(Cached c) {
    CachedData *d = mem_alloc(1, sizeof *d);
    d->c = c;
    d->n_z = c.mla ? c.r : c.NH * c.r;
    size_t keys = (size_t)(c.B * c.Tmax), NH = (size_t)c.NH, n_z = (size_t)d->n_z;
    d->q = floats_noise((size_t)(c.B * c.T) * NH * (size_t)c.HS, 1, 1.2f);
    d->ks = floats_noise(keys * (size_t)c.HS, 2, 1),
    d->vs = floats_noise(keys * (size_t)c.HV, 3, 1);
    d->zk = floats_noise(keys * n_z, 4, 1), d->zv = floats_noise(keys * n_z, 5, 1);
    d->bk = factors_new(&c, c.HS, 6), d->bv = factors_new(&c, c.HV, 7);
    d->bias_k = floats_noise(NH * (size_t)c.HS, 8, 1),
    d->bias_v = floats_noise(NH * (size_t)c.HV, 9, 1);
    d->rope = ref_rope_table(c.Tmax, c.HS, 1000);
    if (!c.mla) {
        d->stored[0] = store_rows(&c, d->ks, c.HS, false);
        d->stored[1] = store_rows(&c, d->vs, c.HV, false);
    }
    d->stored[2] = store_rows(&c, d->zk, d->n_z, true);
    d->stored[3] = store_rows(&c, d->zv, d->n_z, true);
    d->n_o = (size_t)(c.B * c.T) * NH * (size_t)c.HV;
    cached_point(d);
    cached_expect(d);
    return d;
}

static void cached_free(TestCtx *t, CachedData *d) {
    float *all[] = {d->q, d->ks, d->vs, d->zk, d->zv, d->bk, d->bv, d->bias_k, d->bias_v};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        floats_free(t, all[i]);
    for (int i = 0; i < 4; i++)
        mem_free(d->stored[i]);
    mem_free(d->rope);
    mem_free(d->expected);
    mem_free(d);
}

static void cached_compare(TestCtx *t, const CachedData *d, const float *out) {
    const Cached *c = &d->c;
    size_t token = (size_t)(c->NH * c->HV);
    for (int n = 0; n < c->B * c->T; n++) {
        size_t at = (size_t)n * token;
        if (n % c->T < c->n_new[n / c->T])
            CHECK_CLOSE_F64(t, out + at, d->expected + at, .what = "out", .n = token,
                            .rel_tol = 5e-6, .abs_tol = 1e-6);
        else
            CHECK_MSG(t, isnan(out[at]), "token %d was written", n);
    }
}

static void check_cached(TestCtx *t, Cached c) {
    CachedData *d = cached_new(c);
    const Ops *ops;
    FOR_EACH_SET(ops) {
        float *one = NULL;
        static const int threads[] = {1, 2, 7};
        for (int i = 0; i < 3; i++) {
            float *out = floats_new(d->n_o);
            set_threads(threads[i]);
            ops->sdpa_lowrank_extend(fx(out), fx(d->q), &d->cache, &d->a);
            if (i == 0) {
                one = out;
                cached_compare(t, d, one);
                continue;
            }
            CHECK_SAME_BITS(t, one, out, d->n_o * sizeof(float));
            floats_free(t, out);
        }
        floats_free(t, one);
    }
    set_threads(0);
    cached_free(t, d);
}

static void low_rank_cache_agrees_with_the_reference_at_every_position(TestCtx *t) {
    static const int at[] = {0, 1, 2, 62, 63, 64, 127, 128, 255, 256, 300, 600};
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        for (int type = 0; type < 2; type++)
            check_cached(t, (Cached){.B = 1,
                                     .T = 1,
                                     .Tmax = at[i] + 2,
                                     .NH = 3,
                                     .HS = 16,
                                     .HV = 16,
                                     .r = 5,
                                     .ld_b = 8,
                                     .rope = true,
                                     .norm = true,
                                     .type = type ? TYPE_BF16 : TYPE_F32,
                                     .pos = {at[i]},
                                     .n_new = {1}});
    }
}

static void low_rank_cache_takes_every_switch(TestCtx *t) {
    for (int bits = 0; bits < 32; bits++)
        check_cached(t, (Cached){.B = 2,
                                 .T = 4,
                                 .Tmax = 80,
                                 .NH = 2,
                                 .HS = 12,
                                 .HV = 12,
                                 .r = 6,
                                 .ld_b = 6,
                                 .rope = bits & 1,
                                 .norm = bits & 2,
                                 .bias = bits & 4,
                                 .mla = bits & 8,
                                 .type = bits & 16 ? TYPE_BF16 : TYPE_F32,
                                 .pos = {63, 3},
                                 .n_new = {4, 2}});
}

static void low_rank_cache_takes_the_ranks_of_the_paper(TestCtx *t) {
    static const int ranks[] = {1, 16, 46, 51, 54, 55, 64, 128};
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++)
        check_cached(t, (Cached){.B = 1,
                                 .T = 7,
                                 .Tmax = 70,
                                 .NH = 2,
                                 .HS = 128,
                                 .HV = 128,
                                 .r = ranks[i],
                                 .ld_b = (ranks[i] + 7) / 8 * 8,
                                 .rope = true,
                                 .norm = true,
                                 .type = TYPE_F32,
                                 .pos = {61},
                                 .n_new = {7}});
}

static void low_rank_cache_takes_latents_wider_than_heads(TestCtx *t) {
    check_cached(t, (Cached){.B = 2,
                             .T = 3,
                             .Tmax = 300,
                             .NH = 3,
                             .HS = 64,
                             .HV = 40,
                             .r = 200,
                             .ld_b = 200,
                             .mla = true,
                             .rope = true,
                             .norm = true,
                             .bias = true,
                             .type = TYPE_BF16,
                             .pos = {290, 4},
                             .n_new = {3, 2}});
}

static void low_rank_cache_takes_rows_at_different_positions(TestCtx *t) {
    Cached c = {.B = 3,
                .T = 200,
                .Tmax = 330,
                .NH = 2,
                .HS = 16,
                .HV = 16,
                .r = 6,
                .ld_b = 8,
                .rope = true,
                .norm = true,
                .type = TYPE_F32,
                .pos = {0, 320, 100},
                .n_new = {200, 1, 0}};
    check_cached(t, c);
    c.n_new[0] = c.n_new[1] = 0;
    check_cached(t, c);
}

// The same bits whether tokens come one by one, in chunks or at once, alone or beside others.
static void low_rank_cache_does_not_depend_on_chunks_or_neighbours(TestCtx *t) {
    Cached c = {.B = 2,
                .T = 66,
                .Tmax = 330,
                .NH = 2,
                .HS = 16,
                .HV = 16,
                .r = 6,
                .ld_b = 8,
                .rope = true,
                .norm = true,
                .type = TYPE_BF16,
                .pos = {230, 0},
                .n_new = {66, 66}};
    CachedData *d = cached_new(c);
    size_t token = (size_t)(c.NH * c.HV), q_token = (size_t)(c.NH * c.HS);
    const Ops *ops;
    FOR_EACH_SET(ops) {
        float *whole = floats_new(d->n_o);
        set_threads(2);
        ops->sdpa_lowrank_extend(fx(whole), fx(d->q), &d->cache, &d->a);
        set_threads(1);
        for (int chunk = 1; chunk <= 64; chunk += 21) {
            for (int first = 0; first < c.T; first += chunk) {
                int n = min_int(chunk, c.T - first), pos = first, n_new = n;
                LowRankCache second = d->cache;
                size_t size = 2;
                second.ks = (const char *)second.ks + second.ks_batch * size;
                second.vs = (const char *)second.vs + second.vs_batch * size;
                second.zk = (const char *)second.zk + second.zk_batch * size;
                second.zv = (const char *)second.zv + second.zv_batch * size;
                SdpaArgs a = d->a;
                a.B = 1, a.Tq = n, a.pos = &pos, a.n_new = &n_new;
                float *part = floats_new((size_t)n * token);
                size_t at = (size_t)(c.T + first);
                ops->sdpa_lowrank_extend(fx(part), fx(d->q + at * q_token), &second, &a);
                CHECK_SAME_BITS(t, part, whole + at * token, (size_t)n * token * sizeof(float));
                floats_free(t, part);
            }
        }
        floats_free(t, whole);
    }
    set_threads(0);
    cached_free(t, d);
}

TEST_MAIN({"low_rank_cache_agrees_with_the_reference_at_every_position",
           low_rank_cache_agrees_with_the_reference_at_every_position},
          {"low_rank_cache_takes_every_switch", low_rank_cache_takes_every_switch},
          {"low_rank_cache_takes_the_ranks_of_the_paper",
           low_rank_cache_takes_the_ranks_of_the_paper},
          {"low_rank_cache_takes_latents_wider_than_heads",
           low_rank_cache_takes_latents_wider_than_heads},
          {"low_rank_cache_takes_rows_at_different_positions",
           low_rank_cache_takes_rows_at_different_positions},
          {"low_rank_cache_does_not_depend_on_chunks_or_neighbours",
           low_rank_cache_does_not_depend_on_chunks_or_neighbours})
