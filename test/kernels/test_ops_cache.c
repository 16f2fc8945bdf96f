// test_ops_cache.c - appending to the KV cache: positions, rounding to bf16, blocks of latents.
#include <math.h>
#include <string.h>

#include "test/arrays.h"

enum { B = 3 };

// A cache of n elements of either type, filled with a value that no source has.
typedef struct Cache {
    ElemType type;
    size_t n;
    float *memory;  // guarded; bf16 uses the first half
} Cache;

static Cache cache_make(ElemType type, size_t n) {
    Cache c = {type, n, floats_new(type == TYPE_BF16 ? (n + 1) / 2 : n)};
    for (size_t i = 0; i < n; i++) {
        if (type == TYPE_BF16)
            ((uint16_t *)c.memory)[i] = bf16_from_f32(77);
        else
            c.memory[i] = 77;
    }
    return c;
}
static float cache_at(const Cache *c, size_t i) {
    return c->type == TYPE_BF16 ? bf16_to_f32(((const uint16_t *)c->memory)[i]) : c->memory[i];
}
static float stored(ElemType type, float x) {
    return type == TYPE_BF16 ? bf16_to_f32(bf16_from_f32(x)) : x;
}

typedef struct Case {
    ElemType type;
    int T, width, Tmax;
    int pos[B], n_new[B];
} Case;

// Every element of the cache: the new rows hold the source, the others are as before.
static void check_append(TestCtx *t, const Ops *ops, Case c, int threads) {
    size_t w = (size_t)c.width, ld = w + 3, batch = (size_t)c.Tmax * w + 5;
    Cache cache = cache_make(c.type, B * batch);
    float *src = floats_noise((size_t)(B * c.T) * ld, 1, 2);
    set_threads(threads);
    ops->cache_append(cache.memory, batch, c.type, fx(src), ld, c.width, c.pos, c.n_new, B, c.T);
    set_threads(0);
    size_t bad = 0;
    for (size_t i = 0; i < cache.n; i++) {
        int b = (int)(i / batch), p = (int)(i % batch / w), k = p - c.pos[b];
        float expected = 77;
        if (i % batch < (size_t)c.Tmax * w && k >= 0 && k < c.n_new[b])
            expected = stored(c.type, src[(size_t)(b * c.T + k) * ld + i % batch % w]);
        bad += !(cache_at(&cache, i) == expected);
    }
    CHECK_MSG(t, bad == 0, "width %d, T %d: %zu of %zu elements are wrong", c.width, c.T, bad,
              cache.n);
    floats_free(t, src);
    floats_free(t, cache.memory);
}

static void rows_go_to_their_positions(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (int bf16 = 0; bf16 < 2; bf16++) {
            ElemType type = bf16 ? TYPE_BF16 : TYPE_F32;
            for (int i = 0; i < 4; i++) {
                int width = (const int[]){1, 64, 72, 320}[i];
                check_append(t, ops, (Case){type, 1, width, 9, {0, 8, 3}, {1, 1, 0}}, 2);
                check_append(t, ops, (Case){type, 7, width, 20, {0, 13, 5}, {7, 7, 4}}, 1);
                check_append(t, ops, (Case){type, 70, width, 99, {0, 29, 5}, {70, 70, 1}}, 3);
            }
        }
    }
}

typedef struct Latents {
    Case c;
    int groups, r, ld_group;
} Latents;

static void check_latent(TestCtx *t, const Ops *ops, const Latents *l, int threads) {
    const Case *c = &l->c;
    size_t rows = (size_t)(l->groups * l->r), ld = (size_t)(l->groups * l->ld_group) + 2;
    size_t blocks = ceil_div((size_t)c->Tmax, LATENT_BLOCK), batch = blocks * rows * LATENT_BLOCK;
    Cache cache = cache_make(c->type, B * batch);
    float *src = floats_noise((size_t)(B * c->T) * ld, 1, 2);
    set_threads(threads);
    ops->cache_append_latent(cache.memory, batch, c->type, fx(src), ld, l->groups, l->r,
                             l->ld_group, c->pos, c->n_new, B, c->T);
    set_threads(0);
    size_t bad = 0;
    for (size_t i = 0; i < cache.n; i++) {
        int b = (int)(i / batch);
        size_t within = i % batch, row = within / LATENT_BLOCK % rows;
        int p = (int)(within / (rows * LATENT_BLOCK) * LATENT_BLOCK + within % LATENT_BLOCK);
        int k = p - c->pos[b];
        size_t group = row / (size_t)l->r, j = row % (size_t)l->r;
        float expected = 77;
        if (k >= 0 && k < c->n_new[b])
            expected =
                stored(c->type, src[(size_t)(b * c->T + k) * ld + group * (size_t)l->ld_group + j]);
        bad += !(cache_at(&cache, i) == expected);
    }
    CHECK_MSG(t, bad == 0, "r %d, T %d: %zu of %zu elements are wrong", l->r, c->T, bad, cache.n);
    floats_free(t, src);
    floats_free(t, cache.memory);
}

static void latents_go_to_their_blocks(TestCtx *t) {
    static const int ranks[][3] = {{3, 16, 16}, {2, 46, 48}, {1, 51, 56}, {2, 54, 56}, {4, 1, 8}};
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (int bf16 = 0; bf16 < 2; bf16++) {
            ElemType type = bf16 ? TYPE_BF16 : TYPE_F32;
            for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
                const Case cases[] = {{type, 1, 0, 128, {0, 63, 64}, {1, 1, 1}},
                                      {type, 5, 0, 130, {62, 125, 0}, {5, 5, 0}},
                                      {type, 64, 0, 192, {0, 1, 128}, {64, 63, 64}},
                                      {type, 150, 0, 200, {0, 50, 37}, {150, 150, 2}}};
                for (int k = 0; k < 4; k++)
                    check_latent(t, ops,
                                 &(Latents){cases[k], ranks[i][0], ranks[i][1], ranks[i][2]},
                                 1 + k % 3);
            }
        }
    }
}

static void bf16_rounds_to_nearest_even(TestCtx *t) {
    static const struct {
        uint32_t from;
        uint16_t to;
    } cases[] = {{0x3F808000, 0x3F80}, {0x3F818000, 0x3F82}, {0x3F808001, 0x3F81},
                 {0x3F807FFF, 0x3F80}, {0xBF818000, 0xBF82}, {0x7F7FFFFF, 0x7F80},
                 {0x7F800000, 0x7F80}, {0x00008000, 0x0000}, {0x00018000, 0x0002},
                 {0x80000000, 0x8000}};
    enum { N = sizeof cases / sizeof cases[0] };
    const int pos = 0, n_new = 1;
    const Ops *ops;
    FOR_EACH_SET(ops) {
        float src[N + 2];
        uint16_t dst[N + 2];
        for (int i = 0; i < N; i++)
            memcpy(&src[i], &cases[i].from, 4);
        src[N] = NAN;
        uint32_t payload = 0xFF800001;  // rounding must not turn it into infinity
        memcpy(&src[N + 1], &payload, 4);
        ops->cache_append(dst, N + 2, TYPE_BF16, fx(src), N + 2, N + 2, &pos, &n_new, 1, 1);
        for (int i = 0; i < N; i++)
            CHECK_MSG(t, dst[i] == cases[i].to, "%08x became %04x, expected %04x", cases[i].from,
                      dst[i], cases[i].to);
        CHECK(t, isnan(bf16_to_f32(dst[N])) && isnan(bf16_to_f32(dst[N + 1])));
    }
}

TEST_MAIN({"rows_go_to_their_positions", rows_go_to_their_positions},
          {"latents_go_to_their_blocks", latents_go_to_their_blocks},
          {"bf16_rounds_to_nearest_even", bf16_rounds_to_nearest_even})
