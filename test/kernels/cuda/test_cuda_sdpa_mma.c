// test_cuda_sdpa_mma.c - attention on tensor cores (head sizes 64, 128 and 192/128 in bf16) against
// the CPU's. Lists of cases are shared out among three thread orders.
#include "test/kernels/cuda/sdpa_twin.h"

// The bf16 table in each order: 0 forward, 1 reverse, 2 shuffled.
#define FOR_EACH_ORDER(ops, order)                                                                 \
    for (int order = 0; order < 3 && ((ops) = twin_table(2 * order + 1)) != NULL; order++)

static const int sizes[][2] = {{64, 64}, {128, 128}, {192, 128}};
enum { N_SIZES = 3 };

// Every length with heads of 64, and some with wider ones.
static void training_matches_at_every_length(TestCtx *t) {
    const Ops *g;
    static const int lengths[] = {1, 63, 64, 65, 127, 129, 192}, wide[] = {1, 65, 96, 129};
    FOR_EACH_ORDER(g, order) {
        for (int i = order; i < 7; i += 3)
            sdpa_twin_training(t, g, (SdpaCase){1, lengths[i], 1, 1, 64, 64, .pad = 0});
        for (int i = 0; i < 4; i++) {
            const int *size = sizes[1 + (i + order) % 2];
            if (i % 3 == order)
                sdpa_twin_training(t, g, (SdpaCase){1, wide[i], 1, 1, size[0], size[1], .pad = 0});
        }
    }
}

// Packed groups do not divide tiles of rows; a second head begins behind a whole tile of queries.
static void training_matches_for_every_group(TestCtx *t) {
    const Ops *g;
    static const SdpaCase groups[] = {{.B = 2, .T = 35, .NH = 2, .NKV = 2},
                                      {.B = 1, .T = 47, .NH = 3, .NKV = 1},
                                      {.B = 1, .T = 33, .NH = 18, .NKV = 1, .scores = SCORES_LARGE},
                                      {.B = 1, .T = 32, .NH = 2, .NKV = 1}};
    FOR_EACH_ORDER(g, order) {
        for (int i = 0; i < 4; i++) {
            SdpaCase c = groups[i];
            const int *size = sizes[(i + order) % N_SIZES];
            c.HS = size[0], c.HV = size[1], c.pad = 8;
            sdpa_twin_training(t, g, c);
        }
    }
}

static void large_and_equal_scores_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_ORDER(g, order) {
        const int *size = sizes[order];
        for (int kind = SCORES_LARGE; kind <= SCORES_EQUAL; kind++)
            sdpa_twin_training(t, g,
                               (SdpaCase){1, 131, 1, 1, size[0], size[1], .scores = (Scores)kind});
    }
}

// Many new tokens: a key that only the last row of a warp sees, one that its first row does not.
static void extending_a_cache_matches(TestCtx *t) {
    const Ops *g;
    FOR_EACH_ORDER(g, order) {
        const int *size = sizes[order];
        sdpa_twin_extend(t, g, (SdpaCase){0, 50, 3, 1, size[0], size[1], .pad = 0},
                         (SdpaCache){.bf16 = true, .far = 77, .idle_last = true});
        sdpa_twin_extend(t, g, (SdpaCase){0, 40, 1, 1, size[0], size[1], .pad = 0},
                         (SdpaCache){.bf16 = true, .far = 33});
        sdpa_twin_extend(t, g, (SdpaCase){0, 33, 1, 1, size[0], size[1], .pad = 0},
                         (SdpaCache){.bf16 = true, .far = 62});
        sdpa_twin_extend(t, g, (SdpaCase){0, 34, 1, 1, size[0], size[1], .pad = 0},
                         (SdpaCache){.bf16 = true, .far = 300});
    }
}

// A few new tokens: packed groups, more rows than 16, splits, and fewer keys than warps.
static void decoding_matches(TestCtx *t) {
    const Ops *g;
    FOR_EACH_ORDER(g, order) {
        for (int i = 0; i < N_SIZES; i++) {
            const int *size = sizes[i];
            int far[] = {3, 130, 333}, heads[] = {1, 3, 18};
            SdpaCase c = {0, 1, 2 * heads[order], 2, size[0], size[1], .pad = 8};
            sdpa_twin_extend(
                t, g, c,
                (SdpaCache){.bf16 = true, .far = far[(i + order) % 3], .idle_last = order == 1});
        }
        int near[] = {12, 30, 60};  // some rows see nothing of a warp's first keys
        sdpa_twin_extend(t, g, (SdpaCase){0, 7, 3, 1, 64, 64, .pad = 0},
                         (SdpaCache){.bf16 = true, .far = near[order]});
    }
}

// One wide row for all heads, whose first part is the value. Some rows see nothing of a split.
static void absorbed_latents_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_ORDER(g, order) {
        int far[] = {150, 300, 61}, tokens[] = {1, 1, 3};
        SdpaCache near = {.bf16 = true, .prefix = true, .far = order == 1 ? 126 : 33};
        SdpaCache cache = {.bf16 = true, .prefix = true, .far = far[order]};
        cache.idle_last = order == 0;
        sdpa_twin_extend(t, g, (SdpaCase){0, tokens[order], 6, 1, 576, 512, .pad = 0}, cache);
        sdpa_twin_extend(t, g, (SdpaCase){0, 1, 18, 1, 576, 512, .pad = 0}, cache);
        if (order == 1) sdpa_twin_extend(t, g, (SdpaCase){0, 4, 6, 1, 576, 512, .pad = 0}, near);
        if (order == 2) sdpa_twin_extend(t, g, (SdpaCase){0, 1, 6, 1, 576, 512, .pad = 0}, near);
    }
}

static void any_order_of_sums_matches(TestCtx *t) {
    const Ops *g;
    FOR_EACH_ORDER(g, order) {
        for (int i = 0; i < N_SIZES; i++) {
            SdpaCase c = {1, i == order ? 135 : 40, 1, 1, sizes[i][0], sizes[i][1], .pad = 0};
            c.any_order = true;
            sdpa_twin_training(t, g, c);
        }
    }
}

// Every op at every size, with so many bytes of shared memory; the emulator refuses more.
static void limited_matches(TestCtx *t, const Ops *g, int order, size_t bytes) {
    cuda_limit_shared(bytes);
    for (int i = 0; i < N_SIZES; i++) {
        SdpaCase c = {1, i == order ? 70 : 33, 2, 1, sizes[i][0], sizes[i][1], .pad = 0};
        for (int any = 0; any < 2; any++) {
            c.any_order = any;
            sdpa_twin_training(t, g, c);
        }
        c.T = order == 0 ? 40 : 2;
        sdpa_twin_extend(t, g, c, (SdpaCache){.bf16 = true, .far = 77});
    }
    SdpaCase absorbed = {0, order == 1 ? 1 : 3, 6, 1, 576, 512, .pad = 0};
    sdpa_twin_extend(t, g, absorbed, (SdpaCache){.bf16 = true, .prefix = true, .far = 61});
    cuda_limit_shared(0);
}
static void small_devices_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_ORDER(g, order) limited_matches(t, g, order, 99 << 10);
}
// Less than any device has: the plain kernels.
static void tiny_devices_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_ORDER(g, order) {
        if (order == 1) limited_matches(t, g, order, 48 << 10);
    }
}

// A value that is not finite meets rows that do not see it in the same products.
static void the_past_is_safe_from_nan(TestCtx *t) {
    const Ops *g;
    FOR_EACH_ORDER(g, order) {
        const int *size = sizes[order];
        sdpa_twin_poison(t, g, (SdpaCase){1, 70, 2, 1, size[0], size[1], .pad = 0}, 37);
        sdpa_twin_poison(t, g, (SdpaCase){1, 70, 1, 1, size[0], size[1], .pad = 0}, 64);
        SdpaCase c = {0, 34, 1, 1, size[0], size[1], .pad = 0};
        SdpaCache cache = {.bf16 = true, .far = order == 2 ? 300 : 33};
        sdpa_twin_extend_poison(t, g, c, cache, 20);
        c.T = 5, c.NH = 3;
        sdpa_twin_extend_poison(t, g, c, cache, 3);
        c.T = 3, c.NH = 6, c.HS = 576, c.HV = 512, cache.prefix = true;
        sdpa_twin_extend_poison(t, g, c, cache, 1);
    }
}

static void order_does_not_change_bits(TestCtx *t) {
    const Ops *g;
    void *first[N_SIZES] = {0};
    FOR_EACH_ORDER(g, order) {
        for (int i = 0; i < N_SIZES; i++) {
            size_t bytes;
            void *bits = sdpa_twin_bits(
                t, g, (SdpaCase){1, 66, 2, 1, sizes[i][0], sizes[i][1], .pad = 0}, &bytes);
            if (order == 0) {
                first[i] = bits;
                continue;
            }
            CHECK_SAME_BITS(t, first[i], bits, bytes);
            mem_free(bits);
        }
    }
    for (int i = 0; i < N_SIZES; i++)
        mem_free(first[i]);
}

TEST_MAIN({"training_matches_at_every_length", training_matches_at_every_length},
          {"training_matches_for_every_group", training_matches_for_every_group},
          {"large_and_equal_scores_match", large_and_equal_scores_match},
          {"extending_a_cache_matches", extending_a_cache_matches},
          {"decoding_matches", decoding_matches},
          {"absorbed_latents_match", absorbed_latents_match},
          {"any_order_of_sums_matches", any_order_of_sums_matches},
          {"small_devices_match", small_devices_match}, {"tiny_devices_match", tiny_devices_match},
          {"the_past_is_safe_from_nan", the_past_is_safe_from_nan},
          {"order_does_not_change_bits", order_does_not_change_bits})
