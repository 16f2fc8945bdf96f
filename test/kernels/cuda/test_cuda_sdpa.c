// test_cuda_sdpa.c - attention of the CUDA tables against the CPU's at sizes that only the plain
// kernels take. Lists of cases are shared out among the three thread orders of FOR_EACH_TABLE.
#include "test/kernels/cuda/sdpa_twin.h"

static void training_matches(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        sdpa_twin_training(t, g, (SdpaCase){2, 33, 2, 2, 16, 16, .pad = 0});
        sdpa_twin_training(t, g, (SdpaCase){1, 17, 3, 1, 24, 8, .pad = 8});
        sdpa_twin_training(t, g, (SdpaCase){1, 1, 3, 1, 8, 8, .pad = 0});
    }
}

static void odd_and_wide_heads_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        sdpa_twin_training(t, g, (SdpaCase){1, 7, 2, 1, 13, 9, .pad = 3});
        if (table_ / 2 == 1) sdpa_twin_training(t, g, (SdpaCase){1, 9, 2, 2, 136, 144, .pad = 0});
        if (table_ / 2 == 2) sdpa_twin_training(t, g, (SdpaCase){1, 5, 1, 1, 72, 160, .pad = 1});
    }
}

static void lengths_around_tiles_match(TestCtx *t) {
    const Ops *g;
    static const int lengths[] = {31, 32, 63, 64, 65, 66};
    FOR_EACH_TABLE(g) {
        for (size_t i = (size_t)table_ / 2; i < sizeof lengths / sizeof lengths[0]; i += 3)
            sdpa_twin_training(t, g, (SdpaCase){1, lengths[i], 3, 1, 8, 8, .pad = 0});
    }
}

static void large_and_equal_scores_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        sdpa_twin_training(t, g, (SdpaCase){1, 40, 2, 1, 16, 16, .scores = SCORES_LARGE});
        sdpa_twin_training(t, g, (SdpaCase){1, 40, 1, 1, 16, 16, .scores = SCORES_EQUAL});
    }
}

static void extending_a_cache_matches(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        SdpaCache cache = {.bf16 = table_ / 2 == 1, .far = 37, .idle_last = table_ / 2 == 0};
        sdpa_twin_extend(t, g, (SdpaCase){0, 1, 4, 2, 16, 16, .pad = 0}, cache);
        cache.bf16 = !cache.bf16;
        sdpa_twin_extend(t, g, (SdpaCase){0, 5, 3, 1, 24, 8, .pad = 0}, cache);
        sdpa_twin_extend(t, g, (SdpaCase){0, 3, 2, 2, 7, 5, .pad = 1}, cache);
        cache.bf16 = !cache.bf16;
        sdpa_twin_extend(t, g, (SdpaCase){0, 1, 2, 2, 7, 5, .pad = 1}, cache);
    }
}

static void values_may_be_a_prefix_of_keys(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        SdpaCache cache = {.bf16 = true, .prefix = true, .far = 20};
        sdpa_twin_extend(t, g, (SdpaCase){0, 2, 6, 1, 40, 32, .pad = 0}, cache);
        if (table_ / 2 == 2)
            sdpa_twin_extend(t, g, (SdpaCase){0, 1, 3, 1, 168, 136, .pad = 0}, cache);
    }
}

// The first of two new tokens sees nothing of the last split.
static void long_caches_are_split(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        sdpa_twin_extend(t, g, (SdpaCase){0, 1, 2, 1, 8, 8, .pad = 0},
                         (SdpaCache){.bf16 = true, .far = 500});
        sdpa_twin_extend(t, g, (SdpaCase){0, 2, 2, 1, 9, 8, .pad = 0}, (SdpaCache){.far = 255});
    }
}

static void the_past_is_safe_from_nan(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        sdpa_twin_poison(t, g, (SdpaCase){1, 40, 2, 1, 16, 8, .pad = 0}, table_ / 2 == 1 ? 32 : 21);
        SdpaCache cache = {.bf16 = table_ / 2 == 1, .far = table_ / 2 == 2 ? 290 : 20};
        sdpa_twin_extend_poison(t, g, (SdpaCase){0, 14, 2, 1, 16, 24, .pad = 0}, cache, 11);
    }
}

TEST_MAIN({"training_matches", training_matches},
          {"odd_and_wide_heads_match", odd_and_wide_heads_match},
          {"lengths_around_tiles_match", lengths_around_tiles_match},
          {"large_and_equal_scores_match", large_and_equal_scores_match},
          {"extending_a_cache_matches", extending_a_cache_matches},
          {"values_may_be_a_prefix_of_keys", values_may_be_a_prefix_of_keys},
          {"long_caches_are_split", long_caches_are_split},
          {"the_past_is_safe_from_nan", the_past_is_safe_from_nan})
