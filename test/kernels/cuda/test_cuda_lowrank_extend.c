// test_cuda_lowrank_extend.c - attention over cached latents, all sizes, CUDA tables against the
// CPU's. Lists of cases are shared out among the three thread orders of FOR_EACH_TABLE, to save
// time.
#include "test/kernels/cuda/lowrank_twin.h"

#include <math.h>

static void every_switch_matches(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        for (int bits = table_ / 2; bits < 32; bits += 3) {
            LowRankCase c = {4, 2, 12, 12, 6, 6, .pos = {63, 3}, .n_new = {4, 2, 0}};
            c.rope = bits & 1, c.norm = bits & 2, c.bias = bits & 4, c.mla = bits & 8;
            c.bf16 = bits & 16;
            lowrank_twin_extend(t, g, c);
        }
    }
}

static void ranks_of_the_paper_match(TestCtx *t) {
    const Ops *g;
    static const int ranks[] = {1, 16, 46, 55, 64, 128};
    FOR_EACH_TABLE(g) {
        for (size_t i = (size_t)table_ / 2; i < sizeof ranks / sizeof ranks[0]; i += 3) {
            LowRankCase c = {2, 2, 128, 128, ranks[i], (ranks[i] + 7) / 8 * 8, .rope = true};
            c.norm = c.bf16 = true;
            c.pos[0] = 63, c.n_new[0] = 2, c.n_new[1] = 1;
            lowrank_twin_extend(t, g, c);
        }
    }
}

static void latents_wider_than_heads_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        LowRankCase c = {3,   3,           64,           40,           200,
                         200, .mla = true, .rope = true, .norm = true, .bias = true};
        c.pos[0] = 70, c.n_new[0] = 3, c.n_new[1] = 2;
        lowrank_twin_extend(t, g, c);
        c.HS = c.HV = table_ / 2 == 1 ? 64 : 128, c.bf16 = c.apart = true;
        lowrank_twin_extend(t, g, c);
    }
}

// The first of two new tokens sees nothing of the last split.
static void long_caches_are_split(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        LowRankCase c = {2, 1, 16, 12, 5, 8, .rope = true, .norm = true, .bias = true};
        c.pos[0] = 600, c.n_new[0] = 2, c.pos[1] = 191, c.n_new[1] = 2;
        lowrank_twin_extend(t, g, c);
        c.mla = c.bf16 = true;
        lowrank_twin_extend(t, g, c);
    }
}

static void the_past_is_safe_from_nan(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        int order = table_ / 2;
        LowRankCase c = {5, 3, 64, 64, 46, 48, .bf16 = true, .rope = true, .norm = true};
        c.pos[0] = order == 2 ? 300 : 61, c.n_new[0] = 5, c.n_new[1] = 3;
        if (order == 1) c.HS = c.HV = 128;
        if (is_bf16(g)) lowrank_twin_poison(t, g, c, 3, NAN);
        c.mla = true;
        if (is_bf16(g)) lowrank_twin_poison(t, g, c, 3, NAN);
        c.mla = false, c.T = c.n_new[0] = 11, c.NH = 1;
        lowrank_twin_poison(t, g, c, 7, NAN);
        LowRankCase plain = {20, 2, 16, 16, 6, 8, .mla = order == 1, .rope = true, .bias = true};
        plain.pos[0] = order == 2 ? 300 : 30, plain.n_new[0] = 20;
        lowrank_twin_poison(t, g, plain, 17, NAN);
        // Keys whose score is -infinity: no weight, but the same latents are values.
        LowRankCase low = {5, 2, 64, 64, 1, 8, .mla = true, .bf16 = true, .scores = SCORES_LARGE};
        low.pos[0] = 61, low.n_new[0] = 5;
        lowrank_twin_poison(t, g, low, 3, -INFINITY);
        low.T = low.n_new[0] = 11;
        lowrank_twin_poison(t, g, low, 3, -INFINITY);
    }
}

// Large scores: what a token sees first is the least, what comes next the most.
static void extreme_scores_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        LowRankCase c = {4, 2, 16, 16, 6, 8, .n_new = {4, 2, 1}, .scores = SCORES_LARGE};
        c.bf16 = table_ / 2 == 1;
        lowrank_twin_extend(t, g, c);
        c.scores = SCORES_EQUAL;
        lowrank_twin_extend(t, g, c);
    }
}

// 99 KB of shared memory, and less than any device has; the emulator refuses more.
static void small_devices_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        cuda_limit_shared(99 << 10);
        LowRankCase c = {17, 2, 128, 128, 64, 64, .bf16 = true, .rope = true, .norm = true};
        c.pos[0] = 60, c.n_new[0] = 17, c.n_new[1] = 2, c.pos[2] = 5;
        lowrank_twin_extend(t, g, c);
        c.T = 2, c.n_new[0] = 2;
        lowrank_twin_extend(t, g, c);
        c.mla = c.bias = true, c.HS = c.HV = 64;
        lowrank_twin_extend(t, g, c);
        if (is_bf16(g)) {  // factors in one stage
            c.NH = 3, c.HS = c.HV = 128, c.r = c.ld_b = 456, c.pos[1] = 70;
            lowrank_twin_extend(t, g, c);
        }
        cuda_limit_shared(80 << 10);
        c = (LowRankCase){2, 2, 128, 128, 64, 64, .bf16 = true, .n_new = {2, 1, 0}};
        lowrank_twin_extend(t, g, c);
        cuda_limit_shared(0);
    }
}

static void prefill_matches(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        LowRankCase c = {70, 2, 16, 24, 6, 8, .rope = true, .norm = true, .bf16 = true};
        c.n_new[0] = 70, c.pos[1] = 100, c.n_new[1] = 33, c.pos[2] = 5, c.n_new[2] = 1;
        lowrank_twin_extend(t, g, c);
        // An fp32 cache with the sizes of tensor cores.
        c = (LowRankCase){17, 1, 64, 64, 16, 16, .rope = true, .norm = true, .n_new = {17, 1, 0}};
        lowrank_twin_extend(t, g, c);
    }
}

TEST_MAIN({"every_switch_matches", every_switch_matches},
          {"ranks_of_the_paper_match", ranks_of_the_paper_match},
          {"latents_wider_than_heads_match", latents_wider_than_heads_match},
          {"long_caches_are_split", long_caches_are_split},
          {"the_past_is_safe_from_nan", the_past_is_safe_from_nan},
          {"extreme_scores_match", extreme_scores_match},
          {"small_devices_match", small_devices_match}, {"prefill_matches", prefill_matches})
