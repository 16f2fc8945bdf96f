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
        // The second split begins at 384: where a row ends, and behind the first tokens of another.
        c.pos[0] = 700, c.n_new[0] = 4, c.pos[1] = 380, c.n_new[1] = 4;
        c.pos[2] = 382, c.n_new[2] = 3;
        if (table_ / 2 == 2) c.HS = c.HV = 128;
        lowrank_twin_extend(t, g, c);
        c.mla = true;
        lowrank_twin_extend(t, g, c);
    }
}

// One array at a time, and one stride: decoding of LRKV and of MLA, and many new tokens.
static void unaligned_arrays_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        if (!is_bf16(g)) continue;
        for (int i = table_ / 2; i < 3 * 15; i += 3) {
            int what = i / 3, kind = (what + table_ / 2) % 3;
            LowRankCase c = {kind == 2 ? 9 : 2, 2, 64, 64, 16, 16, .bf16 = true, .rope = true};
            c.mla = kind == 1, c.bias = kind > 0;
            c.pos[0] = 3, c.n_new[0] = c.T, c.n_new[1] = 1;
            if (what >= 7 && what < 11) c.shifted = what - 6;
            if (what == 11) c.q_pad = 1;
            if (what == 12) c.batch_pad = 4;
            if (what == 13) c.r = c.ld_b = 15;
            if (what == 14) c.ld_b = 20;
            twin_misalign(what < 7 ? what + 1 : 0);
            lowrank_twin_extend(t, g, c);
            twin_misalign(0);
        }
    }
}

// What looks like a cache that the kernels for decoding take, and is not: one thing at a time.
static void what_decoding_refuses_matches(TestCtx *t) {
    const Ops *g;
    static const LowRankCase refused[] = {
        {2, 2, 64, 64, 16, 16, .bias = true},
        {2, 2, 64, 64, 16, 16, .other_z = true},
        {2, 2, 64, 64, 16, 16, .other_ks = true},
        {2, 2, 64, 64, 16, 16, .other_vs = true},
        {2, 2, 64, 128, 16, 16, .rope = true},
        {2, 2, 64, 64, 72, 72, .rope = true},
        {2, 2, 72, 72, 16, 16, .rope = true},
        {9, 2, 64, 64, 16, 16, .rope = true},
        {9, 1, 192, 128, 16, 16, .rope = true},
        {2, 2, 64, 64, 16, 16, .mla = true, .other_z = true},
        {2, 2, 64, 64, 16, 16, .mla = true, .other_ks = true},
        {2, 2, 64, 64, 16, 16, .mla = true, .other_vs = true},
        {2, 2, 64, 64, 16, 16, .mla = true, .apart = true},
        {2, 2, 72, 64, 16, 16, .mla = true},
        {2, 2, 72, 64, 136, 136, .mla = true},
        {2, 1, 64, 64, 520, 520, .mla = true},
        {9, 2, 64, 64, 16, 16, .mla = true},
    };
    FOR_EACH_TABLE(g) {
        if (!is_bf16(g)) continue;
        for (size_t i = (size_t)table_ / 2; i < sizeof refused / sizeof refused[0]; i += 3) {
            LowRankCase c = refused[i];
            c.bf16 = true, c.pos[0] = 3, c.n_new[0] = c.T, c.n_new[1] = 1;
            lowrank_twin_extend(t, g, c);
        }
    }
}

TEST_MAIN({"lrkv_matches", lrkv_matches}, {"mla_matches", mla_matches},
          {"unaligned_arrays_match", unaligned_arrays_match},
          {"what_decoding_refuses_matches", what_decoding_refuses_matches},
          {"every_shape_matches_in_every_order", every_shape_matches_in_every_order},
          {"extreme_scores_match", extreme_scores_match},
          {"a_long_cache_matches", a_long_cache_matches})
