// test_cuda_lowrank_extend.c - attention over cached latents, CUDA tables against the CPU's. The
// cache is NaN behind every sequence's end.
#include <math.h>

#include "test/kernels/cuda/twin.h"
#include "test/ref_attention.h"

// Lists of cases are shared out among the three thread orders of FOR_EACH_TABLE, to save time.
enum { B = 3 };

// Scores like those of a network; up to +-120, without norm and rope from keys that bf16 holds; all
// the same.
typedef enum Scores { SCORES_NOISE, SCORES_LARGE, SCORES_EQUAL } Scores;

// LRKV: shared rows, latents of each head. MLA: no shared rows, every head reads the same latents.
typedef struct Case {
    int T, NH, HS, HV, r, ld_b;
    bool mla, rope, norm, bias, bf16;  // bf16: the cache
    int pos[B], n_new[B];
    Scores scores;
} Case;

static int tmax(const Case *c) {
    int max = 1;
    for (int b = 0; b < B; b++)
        max = max_int(max, c->pos[b] + c->n_new[b]);
    return max;
}

// One plane of the cache on both sides: (B, rows, width), in blocks of positions or not.
typedef struct Plane {
    void *cpu, *gpu;
    size_t batch;
} Plane;

typedef enum Kind { SHARED_KEYS, KEY_LATENTS, OTHER } Kind;

static Plane plane_new(const Ops *g, const Case *c, int width, Kind kind, bool blocked,
                       uint64_t seed) {
    size_t rows = (size_t)tmax(c) + 5, w = (size_t)width, size = c->bf16 ? 2 : 4;
    if (blocked) rows = round_up(rows, LATENT_BLOCK);
    Plane p = {mem_alloc(B * rows * w, size), g->alloc(B * rows * w * size), rows * w};
    float *x = mem_alloc(B * rows * w, sizeof(float));
    test_noise(x, B * rows * w, seed, 1);
    for (size_t i = 0; i < B * rows * w; i++) {
        size_t b = i / (rows * w), at = i % (rows * w);
        size_t position = blocked ? at / (64 * w) * 64 + at % 64 : at / w;
        // Keys are then +-1.5 plus a multiple of 1/64, all of a position the same.
        bool large = c->scores == SCORES_LARGE;
        if (large && kind == SHARED_KEYS) x[i] = (const float[]){1.5f, -1.5f, 1.0f}[position % 3];
        if (large && kind == KEY_LATENTS) x[i] = (float)((int)(3 * fabsf(x[i])) - 1);
        if (position >= (size_t)(c->pos[b] + c->n_new[b])) x[i] = NAN;
        if (c->bf16)
            ((uint16_t *)p.cpu)[i] = bf16_from_f32(x[i]);
        else
            ((float *)p.cpu)[i] = x[i];
    }
    g->upload_bytes(p.gpu, p.cpu, B * rows * w * size);
    mem_free(x);
    return p;
}

static void plane_free(const Ops *g, Plane *p) {
    mem_free(p->cpu);
    if (p->gpu) g->free(p->gpu);
}

static SdpaArgs args_of(const Case *c) {
    size_t q = (size_t)c->NH * c->HS + 8, o = (size_t)c->NH * c->HV, T = (size_t)c->T;
    SdpaArgs a = {.B = B,
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
static Twin factors_new(const Ops *g, const Case *c, int rows, bool keys, uint64_t seed) {
    size_t n = (size_t)c->NH * rows * c->ld_b;
    float *x = mem_alloc(n, sizeof(float));
    test_noise(x, n, seed, 0.5f);
    for (size_t i = 0; i < n; i++) {
        if (keys && c->scores == SCORES_LARGE) x[i] = x[i] > 0 ? 1.0f / 64 : -1.0f / 64;
        if (i % (size_t)c->ld_b >= (size_t)c->r) x[i] = NAN;
    }
    Twin b = twin_of(g, TYPE_FX, x, n);
    mem_free(x);
    return b;
}

static Twin queries_new(const Ops *g, const Case *c, const SdpaArgs *a) {
    size_t n = B * a->q_batch;
    if (c->scores == SCORES_NOISE) return twin_noise(g, TYPE_FX, n, 1, 1.2f);
    float *x = mem_alloc(n, sizeof(float));
    for (size_t i = 0; i < n; i++)
        x[i] = c->scores == SCORES_LARGE ? 80.0f / (a->scale * (float)c->HS) : 0;
    Twin q = twin_of(g, TYPE_FX, x, n);
    mem_free(x);
    return q;
}

static void check_case(TestCtx *t, const Ops *g, Case c) {
    const Ops *o = ops_cpu();
    SdpaArgs a = args_of(&c), ga = a;
    int n_z = c.mla ? c.r : c.NH * c.r, *gpos = twin_ints(g, c.pos, B),
        *gnew = twin_ints(g, c.n_new, B);
    a.pos = c.pos, a.n_new = c.n_new, ga.pos = gpos, ga.n_new = gnew;
    Plane none = {NULL, NULL, 0}, ks = c.mla ? none : plane_new(g, &c, c.HS, SHARED_KEYS, false, 2);
    Plane vs = c.mla ? none : plane_new(g, &c, c.HV, OTHER, false, 3);
    Plane zk = plane_new(g, &c, n_z, KEY_LATENTS, true, 4);
    Plane zv = plane_new(g, &c, n_z, OTHER, true, 5);
    Twin q = queries_new(g, &c, &a);
    Twin out = twin_noise(g, TYPE_FX, B * a.o_batch, 6, 1);
    Twin bk = factors_new(g, &c, c.HS, true, 7), bv = factors_new(g, &c, c.HV, false, 8);
    Twin bias_k = twin_noise(g, TYPE_F32, (size_t)c.NH * c.HS, 9, 1);
    Twin bias_v = twin_noise(g, TYPE_F32, (size_t)c.NH * c.HV, 10, 1);
    float *table = ref_rope_table(tmax(&c), c.HS, 1000);
    Twin rope = twin_of(g, TYPE_F32, table, (size_t)tmax(&c) * c.HS);
    LowRankCache x = {.r = c.r,
                      .ld_b = c.ld_b,
                      .shared_z = c.mla,
                      .n_zk = n_z,
                      .n_zv = n_z,
                      .ks_batch = ks.batch,
                      .vs_batch = vs.batch,
                      .zk_batch = zk.batch,
                      .zv_batch = zv.batch,
                      .norm = c.norm,
                      .eps = 1e-6f};
    LowRankCache gx = x;
    x.ks = ks.cpu, x.vs = vs.cpu, x.zk = zk.cpu, x.zv = zv.cpu, x.bk = cpu(bk), x.bv = cpu(bv);
    gx.ks = ks.gpu, gx.vs = vs.gpu, gx.zk = zk.gpu, gx.zv = zv.gpu, gx.bk = gpu(bk),
    gx.bv = gpu(bv);
    if (c.rope) x.rope = rope.cpu, gx.rope = rope.gpu;
    if (c.bias) x.bias_k = bias_k.cpu, gx.bias_k = bias_k.gpu;
    if (c.bias) x.bias_v = bias_v.cpu, gx.bias_v = bias_v.gpu;
    o->sdpa_lowrank_extend(cpu(out), cpu(q), &x, &a);
    g->sdpa_lowrank_extend(gpu(out), gpu(q), &gx, &ga);
    // In bf16 keys are rounded before the scores.
    TWIN_CHECK(t, g, out, is_bf16(g) ? 2 * 0x1p-7 : 8 * sum_tol((size_t)a.Tk), 1e-6);
    TWIN_FREE(t, g, &q, &out, &bk, &bv, &bias_k, &bias_v, &rope);
    plane_free(g, &ks), plane_free(g, &vs), plane_free(g, &zk), plane_free(g, &zv);
    g->free(gpos), g->free(gnew), mem_free(table);
}

static void every_switch_matches(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        for (int bits = table_ / 2; bits < 32; bits += 3) {
            Case c = {4, 2, 12, 12, 6, 6, .pos = {63, 3}, .n_new = {4, 2, 0}};
            c.rope = bits & 1, c.norm = bits & 2, c.bias = bits & 4, c.mla = bits & 8;
            c.bf16 = bits & 16;
            check_case(t, g, c);
        }
    }
}

static void ranks_of_the_paper_match(TestCtx *t) {
    const Ops *g;
    static const int ranks[] = {1, 16, 46, 55, 64, 128};
    FOR_EACH_TABLE(g) {
        for (size_t i = (size_t)table_ / 2; i < sizeof ranks / sizeof ranks[0]; i += 3) {
            Case c = {2, 2, 128, 128, ranks[i], (ranks[i] + 7) / 8 * 8, .rope = true};
            c.norm = c.bf16 = true;
            c.pos[0] = 63, c.n_new[0] = 2, c.n_new[1] = 1;
            check_case(t, g, c);
        }
    }
}

static void latents_wider_than_heads_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        Case c = {3, 3, 64, 40, 200, 200, .mla = true, .rope = true, .norm = true, .bias = true};
        c.pos[0] = 70, c.n_new[0] = 3, c.n_new[1] = 2;
        check_case(t, g, c);
        c.HS = c.HV = table_ / 2 == 2 ? 128 : 64, c.bf16 = true;
        check_case(t, g, c);
    }
}

static void long_caches_are_split(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        Case c = {1, 1, 16, 16, 5, 8, .rope = true, .norm = true, .bias = true};
        c.pos[0] = 600, c.n_new[0] = 1, c.pos[1] = 255, c.n_new[1] = 1;
        check_case(t, g, c);
        c.mla = c.bf16 = true;
        check_case(t, g, c);
    }
}

// Up to 8 new tokens over a bf16 cache of LRKV; all ranks with heads of 64 and of 128.
static void decoding_matches(TestCtx *t) {
    const Ops *g;
    static const int lengths[] = {1, 63, 64, 65, 127, 129, 192}, heads[] = {1, 6, 7, 3};
    static const int ranks[] = {16, 46, 51, 54, 55, 64};
    FOR_EACH_TABLE(g) {
        if (!is_bf16(g)) continue;
        for (int i = 0; i < 7; i++) {
            int k = table_ / 2 * 7 + i, HS = k / 6 % 2 ? 128 : 64, r = ranks[k % 6];
            Case c = {1 + k % 8, heads[k / 2 % 4], HS, HS, r, r + r % 2, .bf16 = true};
            c.n_new[0] = min_int(c.T, lengths[i]), c.pos[0] = lengths[i] - c.n_new[0];
            c.n_new[1] = max_int(1, c.T - 3), c.pos[1] = c.pos[0] / 2, c.n_new[2] = c.T / 2;
            c.rope = k % 7 != 3, c.norm = k % 5 != 2;
            check_case(t, g, c);
        }
    }
}

static void decoding_extreme_scores_matches(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        if (!is_bf16(g)) continue;
        Case c = {5, 3, 64, 64, 46, 48, .bf16 = true, .scores = SCORES_LARGE};
        c.pos[0] = 128, c.n_new[0] = 5, c.pos[1] = 61, c.n_new[1] = 4, c.n_new[2] = 1;
        if (table_ / 2 == 1) c.HS = c.HV = 128;
        check_case(t, g, c);
        c.scores = SCORES_EQUAL, c.rope = c.norm = true;
        check_case(t, g, c);
    }
}

// Splits of which some rows have no keys, or not for all of their tokens.
static void decoding_a_long_cache_matches(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        if (!is_bf16(g)) continue;
        Case c = {4, 7, 64, 64, 55, 56, .bf16 = true, .rope = true, .norm = true};
        c.pos[0] = 700, c.n_new[0] = 4, c.pos[1] = 190, c.n_new[1] = 4, c.n_new[2] = 2;
        if (table_ / 2 == 2) c.HS = c.HV = 128;
        check_case(t, g, c);
    }
}

// 99 KB of shared memory; the emulator refuses more.
static void small_devices_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        cuda_limit_shared(99 << 10);
        Case c = {9, 2, 128, 128, 64, 64, .bf16 = true, .rope = true, .norm = true};
        c.pos[0] = 60, c.n_new[0] = 9, c.n_new[1] = 2, c.pos[2] = 5;
        check_case(t, g, c);
        c.T = 2, c.n_new[0] = 2;
        check_case(t, g, c);
        c.mla = c.bias = true, c.HS = c.HV = 64;
        check_case(t, g, c);
        cuda_limit_shared(0);
    }
}

static void prefill_matches(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        Case c = {70, 2, 16, 24, 6, 8, .rope = true, .norm = true, .bf16 = true};
        c.n_new[0] = 70, c.pos[1] = 100, c.n_new[1] = 33, c.pos[2] = 5, c.n_new[2] = 1;
        check_case(t, g, c);
        // An fp32 cache with the sizes of tensor cores.
        c = (Case){17, 1, 64, 64, 16, 16, .rope = true, .norm = true, .n_new = {17, 1, 0}};
        check_case(t, g, c);
    }
}

TEST_MAIN({"every_switch_matches", every_switch_matches},
          {"ranks_of_the_paper_match", ranks_of_the_paper_match},
          {"latents_wider_than_heads_match", latents_wider_than_heads_match},
          {"long_caches_are_split", long_caches_are_split}, {"decoding_matches", decoding_matches},
          {"decoding_extreme_scores_matches", decoding_extreme_scores_matches},
          {"decoding_a_long_cache_matches", decoding_a_long_cache_matches},
          {"small_devices_match", small_devices_match}, {"prefill_matches", prefill_matches})
