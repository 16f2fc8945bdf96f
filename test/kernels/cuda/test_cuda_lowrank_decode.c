// test_cuda_lowrank_decode.c - up to 8 new tokens over cached latents in bf16, CUDA tables against
// the CPU's. Lists of cases are shared out among the three thread orders of FOR_EACH_TABLE, to save
// time.
#include "test/kernels/cuda/lowrank_twin.h"

// Up to 8 new tokens over a bf16 cache of LRKV: every kernel there is, in every order.
static void lrkv_matches(TestCtx *t) {
    const Ops *g;
    static const int lengths[] = {1, 63, 64, 65, 127, 129, 192}, heads[] = {1, 6, 7, 3};
    static const int ranks[][4] = {
        {16, 1, 16, 7}, {32, 17, 24, 30}, {46, 48, 46, 46}, {51, 54, 55, 64}};
    FOR_EACH_TABLE(g) {
        if (!is_bf16(g)) continue;
        for (int i = 0; i < 8; i++) {
            int order = table_ / 2, k = order * 8 + i, HS = i % 2 ? 128 : 64;
            int r = ranks[i / 2][order + i % 2], length = lengths[k % 7];
            LowRankCase c = {1 + (k + order) % 8, heads[k / 2 % 4], HS, HS, r,
                             r + r % 2,           .bf16 = true};
            c.n_new[0] = min_int(c.T, length), c.pos[0] = length - c.n_new[0];
            c.n_new[1] = max_int(1, c.T - 3), c.pos[1] = c.pos[0] / 2, c.n_new[2] = c.T / 2;
            c.rope = k % 7 != 3, c.norm = k % 5 != 2;
            lowrank_twin_extend(t, g, c);
        }
    }
}

// The same of MLA, whose heads and new tokens share the rows of a block.
static void mla_matches(TestCtx *t) {
    const Ops *g;
    static const int lengths[] = {129, 1, 64, 63, 127, 65, 192}, heads[] = {1, 6, 18, 3, 7};
    static const int ranks[] = {128, 384, 16, 200, 46, 72, 512, 1, 128, 130, 520, 64};
    FOR_EACH_TABLE(g) {
        if (!is_bf16(g)) continue;
        for (int i = 0; i < 4; i++) {
            int k = table_ / 2 * 4 + i, HS = k % 2 ? 64 : 128, length = lengths[k % 7];
            LowRankCase c = {1 + k * 5 % 8,   heads[k % 5], HS,
                             k % 4 ? HS : 40, ranks[k],     .mla = true};
            c.ld_b = (c.r + 7) / 8 * 8, c.bf16 = true;
            c.n_new[0] = min_int(c.T, length), c.pos[0] = length - c.n_new[0];
            c.n_new[1] = max_int(1, c.T - 3), c.pos[1] = c.pos[0] / 2, c.n_new[2] = c.T / 2;
            c.rope = k % 7 != 3, c.norm = k % 5 != 2, c.bias = k % 3 == 1;
            lowrank_twin_extend(t, g, c);
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
            LowRankCase c = {i < 8 ? 1 : 17, 1,           HS, HS, r, r, .bf16 = true,
                             .rope = true,   .norm = true};
            c.pos[0] = 3, c.n_new[0] = c.T, c.n_new[1] = 1;
            lowrank_twin_extend(t, g, c);
            c.mla = true, c.r = i < 2 ? 24 : 136, c.ld_b = c.r;
            if (i < 4) lowrank_twin_extend(t, g, c);
        }
    }
}

static void extreme_scores_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        if (!is_bf16(g)) continue;
        LowRankCase c = {5, 3, 64, 64, 46, 48, .bf16 = true, .scores = SCORES_LARGE};
        c.pos[0] = 128, c.n_new[0] = 5, c.pos[1] = 61, c.n_new[1] = 4, c.n_new[2] = 1;
        if (table_ / 2 == 1) c.HS = c.HV = 128;
        lowrank_twin_extend(t, g, c);
        c.scores = SCORES_EQUAL, c.rope = c.norm = true;
        lowrank_twin_extend(t, g, c);
        c.mla = true, c.r = 64, c.ld_b = 72;
        lowrank_twin_extend(t, g, c);
        c.scores = SCORES_LARGE, c.rope = c.norm = false;
        lowrank_twin_extend(t, g, c);
    }
}

// Splits of which some rows have no keys, or not for all of their tokens.
static void a_long_cache_matches(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        if (!is_bf16(g)) continue;
        LowRankCase c = {4, 7, 64, 64, 55, 56, .bf16 = true, .rope = true, .norm = true};
        c.pos[0] = 700, c.n_new[0] = 4, c.pos[1] = 190, c.n_new[1] = 4, c.n_new[2] = 2;
        if (table_ / 2 == 2) c.HS = c.HV = 128;
        lowrank_twin_extend(t, g, c);
        c.mla = true;
        lowrank_twin_extend(t, g, c);
    }
}

TEST_MAIN({"lrkv_matches", lrkv_matches}, {"mla_matches", mla_matches},
          {"every_shape_matches_in_every_order", every_shape_matches_in_every_order},
          {"extreme_scores_match", extreme_scores_match},
          {"a_long_cache_matches", a_long_cache_matches})
