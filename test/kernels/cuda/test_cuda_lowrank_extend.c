// test_cuda_lowrank_extend.c - attention over cached latents, CUDA tables against the CPU's. The
// cache is NaN behind every sequence's end.
#include <math.h>
#include <string.h>

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

// All of one call, on both sides.
typedef struct Call {
    Case c;
    SdpaArgs a, ga;  // the CPU's, the device's
    LowRankCache x, gx;
    int *gpos, *gnew;
    Plane ks, vs, zk, zv;
    Twin q, out, bk, bv, bias_k, bias_v, rope;
} Call;

static void call_caches(Call *k, const Ops *g) {
    const Case *c = &k->c;
    int n_z = c->mla ? c->r : c->NH * c->r;
    Plane none = {NULL, NULL, 0};
    k->ks = c->mla ? none : plane_new(g, c, c->HS, SHARED_KEYS, false, 2);
    k->vs = c->mla ? none : plane_new(g, c, c->HV, OTHER, false, 3);
    k->zk = plane_new(g, c, n_z, KEY_LATENTS, true, 4);
    k->zv = plane_new(g, c, n_z, OTHER, true, 5);
    LowRankCache x = {.r = c->r,
                      .ld_b = c->ld_b,
                      .shared_z = c->mla,
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

static void call_new(Call *k, const Ops *g, Case c) {
    k->c = c;
    k->a = args_of(&c), k->ga = k->a;
    k->gpos = twin_ints(g, c.pos, B), k->gnew = twin_ints(g, c.n_new, B);
    k->a.pos = k->c.pos, k->a.n_new = k->c.n_new, k->ga.pos = k->gpos, k->ga.n_new = k->gnew;
    call_caches(k, g);
    k->q = queries_new(g, &c, &k->a);
    k->out = twin_noise(g, TYPE_FX, B * k->a.o_batch, 6, 1);
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
    plane_free(g, &k->ks), plane_free(g, &k->vs), plane_free(g, &k->zk), plane_free(g, &k->zv);
    g->free(k->gpos), g->free(k->gnew);
}

static void check_case(TestCtx *t, const Ops *g, Case c) {
    Call k;
    call_new(&k, g, c);
    ops_cpu()->sdpa_lowrank_extend(cpu(k.out), cpu(k.q), &k.x, &k.a);
    g->sdpa_lowrank_extend(gpu(k.out), gpu(k.q), &k.gx, &k.ga);
    // In bf16 keys are rounded before the scores.
    double tol = is_bf16(g) ? 2 * 0x1p-7 : 8 * sum_tol((size_t)k.a.Tk);
    TWIN_CHECK(t, g, k.out, tol, 1e-6);
    call_free(t, g, &k);
}

// With NaN in one plane at new token `at` of the first row: that token of every head is spoilt,
// those before it keep their bits. Of the rows that all heads read it is the first element, of the
// latents one of each head.
static void check_poison(TestCtx *t, const Ops *g, Case c, int at) {
    Call k;
    call_new(&k, g, c);
    const Plane *planes[] = {&k.ks, &k.vs, &k.zk, &k.zv};
    g->sdpa_lowrank_extend(gpu(k.out), gpu(k.q), &k.gx, &k.ga);
    float *clean = twin_download(g, &k.out);
    for (int p = 0; p < 4; p++) {
        if (!planes[p]->cpu) continue;
        size_t rows = p < 2 ? (size_t)c.HS : (size_t)k.x.n_zk, n = B * planes[p]->batch;
        size_t position = (size_t)(c.pos[0] + at), size = c.bf16 ? 2 : 4;
        char *x = mem_alloc(n, size);
        memcpy(x, planes[p]->cpu, n * size);
        for (size_t i = 0; i < rows; i += p < 2 ? rows : (size_t)c.r) {
            size_t block = position / 64 * 64;
            size_t to = p < 2 ? position * rows + i : block * rows + i * 64 + position % 64;
            if (c.bf16)
                ((uint16_t *)x)[to] = bf16_from_f32(NAN);
            else
                ((float *)x)[to] = NAN;
        }
        g->upload_bytes(planes[p]->gpu, x, n * size);
        g->sdpa_lowrank_extend(gpu(k.out), gpu(k.q), &k.gx, &k.ga);
        twin_check_past(t, g, &k.out, clean, (size_t)at * k.a.o_token, k.a.o_token, (size_t)c.HV);
        g->upload_bytes(planes[p]->gpu, planes[p]->cpu, n * size);
        mem_free(x);
    }
    mem_free(clean);
    call_free(t, g, &k);
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
        c.HS = c.HV = table_ / 2 == 1 ? 64 : 128, c.bf16 = true;
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

// Up to 8 new tokens over a bf16 cache of LRKV: every kernel there is, in every order.
static void decoding_matches(TestCtx *t) {
    const Ops *g;
    static const int lengths[] = {1, 63, 64, 65, 127, 129, 192}, heads[] = {1, 6, 7, 3};
    static const int ranks[][4] = {
        {16, 1, 16, 7}, {32, 17, 24, 30}, {46, 48, 46, 46}, {51, 54, 55, 64}};
    FOR_EACH_TABLE(g) {
        if (!is_bf16(g)) continue;
        for (int i = 0; i < 8; i++) {
            int order = table_ / 2, k = order * 8 + i, HS = i % 2 ? 128 : 64;
            int r = ranks[i / 2][order + i % 2], length = lengths[k % 7];
            Case c = {1 + (k + order) % 8, heads[k / 2 % 4], HS, HS, r, r + r % 2, .bf16 = true};
            c.n_new[0] = min_int(c.T, length), c.pos[0] = length - c.n_new[0];
            c.n_new[1] = max_int(1, c.T - 3), c.pos[1] = c.pos[0] / 2, c.n_new[2] = c.T / 2;
            c.rope = k % 7 != 3, c.norm = k % 5 != 2;
            check_case(t, g, c);
        }
    }
}

// Every shape of the kernels for decoding and for many new tokens, in every order.
static void every_shape_matches_in_every_order(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        if (!is_bf16(g)) continue;
        for (int i = 0; i < 10; i++) {
            int HS = i % 2 ? 128 : 64, r = i < 8 ? 16 * (i / 2 + 1) : 24;
            Case c = {i < 8 ? 1 : 17, 1, HS, HS, r, r, .bf16 = true, .rope = true, .norm = true};
            c.pos[0] = 3, c.n_new[0] = c.T, c.n_new[1] = 1;
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

static void the_past_is_safe_from_nan(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        int order = table_ / 2;
        Case c = {5, 3, 64, 64, 46, 48, .bf16 = true, .rope = true, .norm = true};
        c.pos[0] = order == 2 ? 300 : 61, c.n_new[0] = 5, c.n_new[1] = 3;
        if (order == 1) c.HS = c.HV = 128;
        if (is_bf16(g)) check_poison(t, g, c, 3);
        c.T = c.n_new[0] = 11, c.NH = 1;
        check_poison(t, g, c, 7);
        Case plain = {20, 2, 16, 16, 6, 8, .mla = order == 1, .rope = true, .bias = true};
        plain.pos[0] = order == 2 ? 300 : 30, plain.n_new[0] = 20;
        check_poison(t, g, plain, 17);
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
          {"every_shape_matches_in_every_order", every_shape_matches_in_every_order},
          {"decoding_extreme_scores_matches", decoding_extreme_scores_matches},
          {"decoding_a_long_cache_matches", decoding_a_long_cache_matches},
          {"the_past_is_safe_from_nan", the_past_is_safe_from_nan},
          {"small_devices_match", small_devices_match}, {"prefill_matches", prefill_matches})
