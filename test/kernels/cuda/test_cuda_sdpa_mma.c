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

// Packed groups do not divide tiles of 128 rows.
static void training_matches_for_every_group(TestCtx *t) {
    const Ops *g;
    static const int heads[][2] = {{2, 2}, {3, 1}, {6, 2}};
    FOR_EACH_ORDER(g, order) {
        for (int i = 0; i < 3; i++) {
            const int *size = sizes[(i + order) % N_SIZES];
            sdpa_twin_training(
                t, g, (SdpaCase){2, 47, heads[i][0], heads[i][1], size[0], size[1], .pad = 8});
        }
    }
}

static void large_and_equal_scores_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_ORDER(g, order) {
        const int *size = sizes[order];
        for (int kind = SCORES_LARGE; kind <= SCORES_EQUAL; kind++)
            sdpa_twin_training(t, g, (SdpaCase){1, 131, 1, 1, size[0], size[1], 0, (Scores)kind});
    }
}

static void extending_a_cache_matches(TestCtx *t) {
    const Ops *g;
    FOR_EACH_ORDER(g, order) {
        const int *size = sizes[order];
        sdpa_twin_extend(t, g, (SdpaCase){0, 1, 3, 1, size[0], size[1], .pad = 0},
                         (SdpaCache){.bf16 = true, .far = 130});
        sdpa_twin_extend(t, g, (SdpaCase){0, 50, 3, 1, size[0], size[1], .pad = 0},
                         (SdpaCache){.bf16 = true, .far = 77});
        sdpa_twin_extend(t, g, (SdpaCase){0, 40, 1, 1, size[0], size[1], .pad = 0},
                         (SdpaCache){.bf16 = true, .far = 300});
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

// What devices with 99 KB of shared memory run, and dq summed by atomics.
static void small_memory_and_fast_gradients_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_ORDER(g, order) {
        for (int i = 0; i < N_SIZES; i++) {
            CudaSettings s = {.fast_gradients = (i + order) % 2, .shared_limit = 99 << 10};
            cuda_configure(&s);
            sdpa_twin_training(t, g, (SdpaCase){1, 131, 3, 1, sizes[i][0], sizes[i][1], .pad = 0});
        }
        cuda_configure(&(CudaSettings){.fast_gradients = true});
        const int *size = sizes[order];
        sdpa_twin_training(t, g, (SdpaCase){1, 135, 2, 2, size[0], size[1], .pad = 0});
        cuda_configure(&(CudaSettings){.fast_gradients = false});
    }
}

TEST_MAIN({"training_matches_at_every_length", training_matches_at_every_length},
          {"training_matches_for_every_group", training_matches_for_every_group},
          {"large_and_equal_scores_match", large_and_equal_scores_match},
          {"extending_a_cache_matches", extending_a_cache_matches},
          {"small_memory_and_fast_gradients_match", small_memory_and_fast_gradients_match},
          {"order_does_not_change_bits", order_does_not_change_bits})
