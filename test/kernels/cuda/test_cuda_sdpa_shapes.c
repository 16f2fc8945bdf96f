// test_cuda_sdpa_shapes.c - which attention kernel runs: every shape of every kernel in every
// thread order, with the smallest inputs that reach it, and arrays and strides that tensor cores
// and vector accesses cannot take.
#include "test/kernels/cuda/sdpa_twin.h"

// Head sizes of the tensor-core kernels, and of the plain ones.
static const int sizes[][2] = {{64, 64}, {128, 128}, {192, 128}};
static const size_t limits[] = {0, 99 << 10};

static void every_gradient_kernel_matches_in_every_order(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        if (!is_bf16(g)) continue;
        for (int i = 0; i < 3 * 2 * 2; i++) {
            SdpaCase c = {1, 9, 2, 1, sizes[i / 4][0], sizes[i / 4][1], .any_order = i % 2};
            cuda_limit_shared(limits[i / 2 % 2]);
            sdpa_twin_training(t, g, c);
        }
        cuda_limit_shared(0);
    }
}

static void every_latent_kernel_matches_in_every_order(TestCtx *t) {
    const Ops *g;
    static const SdpaCache cache = {.bf16 = true, .prefix = true, .far = 20};
    FOR_EACH_TABLE(g) {
        if (!is_bf16(g)) continue;
        for (int i = 0; i < 4; i++) {
            cuda_limit_shared(limits[i / 2]);
            sdpa_twin_extend(t, g, (SdpaCase){0, 1, i % 2 ? 18 : 3, 1, 576, 512, .pad = 0}, cache);
        }
        cuda_limit_shared(0);
    }
}

static void plain_extension_matches_in_every_order(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        for (int i = 0; i < 4; i++) {
            SdpaCache cache = {.bf16 = i % 2, .far = 9};
            int HS = i / 2 ? 16 : 7;
            sdpa_twin_extend(t, g, (SdpaCase){0, 2, 2, 1, HS, HS, .pad = 0}, cache);
        }
    }
}

// One array at a time, and one stride.
static void unaligned_arrays_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        for (int i = 0; i < 9; i++) {
            int HS = 16, misaligned[9] = {1, 0, 0, 2, 4, 5, 0, 0, 0};
            for (int n = 0; n < 2; n++, HS *= 4) {
                SdpaCase c = {1, 3, 2, 1, HS, HS, .pad = 8};
                c.k_gap = i == 0 ? 7 : i == 1, c.v_gap = i == 1 ? 7 : i == 2;
                c.dk_gap = i == 5 ? 7 : i == 6, c.dv_gap = i == 6 ? 7 : i == 7;
                if (i == 8) c.pad = 4;
                twin_misalign(misaligned[i]);
                sdpa_twin_training(t, g, c);
                twin_misalign(0);
            }
        }
    }
}

static void unaligned_caches_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        for (int i = 0; i < 6; i++) {
            for (int n = 0; n < 4; n++) {
                int HS = n < 2 ? 16 : 64;
                SdpaCase c = {0, n == 3 ? 20 : 2, 2, 1, HS, HS, .pad = 8};
                SdpaCache cache = {.bf16 = n > 0, .far = 5};
                cache.shift = i == 2, c.v_gap = i == 2 ? 7 : i == 3;
                if (i == 4) c.pad = 4;
                twin_misalign(i < 2 ? i + 1 : 0);
                sdpa_twin_extend(t, g, c, cache);
                twin_misalign(0);
            }
        }
    }
}

// Each stride in turn; a stride that no kernel multiplies by more than 0 would not matter.
static void odd_strides_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        for (int i = table_ / 2; i < SDPA_STRIDES; i += 3) {
            for (int HS = 16; HS <= 64; HS *= 4)
                sdpa_twin_training(t, g, (SdpaCase){2, 2, 2, 2, HS, HS, .odd_stride = i + 1});
        }
    }
}

static void unaligned_latents_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        if (!is_bf16(g)) continue;
        for (int i = 0; i < 4; i++) {
            SdpaCache cache = {.bf16 = true, .prefix = true, .far = 2, .shift = i == 2};
            twin_misalign(i < 2 ? i + 1 : 0);
            SdpaCase c = {0, 1, 2, 1, 576, 512, .pad = i == 3 ? 4 : 0};
            sdpa_twin_extend(t, g, c, cache);
        }
        twin_misalign(0);
    }
}

// What looks like the tensor cores' attention, or the latent one, and is not: one thing at a time.
static void what_tensor_cores_refuse_matches(TestCtx *t) {
    const Ops *g;
    static const SdpaCache own = {.bf16 = true, .far = 5}, fp32 = {.far = 5};
    static const SdpaCache prefix = {.bf16 = true, .prefix = true, .far = 5};
    static const SdpaCache close = {.bf16 = true, .prefix = true, .far = 5, .close_values = true};
    static const SdpaCache one_row = {.bf16 = true, .prefix = true, .far = 5, .one_row = true};
    static const struct {
        SdpaCase c;
        const SdpaCache *cache;
    } refused[] = {{{0, 2, 2, 1, 576, 64, .pad = 0}, &prefix},
                   {{0, 2, 2, 1, 520, 512, .pad = 0}, &prefix},
                   {{0, 2, 2, 2, 576, 512, .pad = 0}, &prefix},
                   {{0, 2, 2, 1, 576, 512, .scale = -8}, &prefix},
                   {{0, 2, 2, 1, 576, 512, .pad = 0}, &own},
                   {{0, 2, 2, 1, 576, 512, .pad = 0}, &close},
                   {{0, 2, 2, 1, 576, 512, .pad = 0}, &one_row},
                   {{0, 2, 2, 1, 64, 64, .pad = 0}, &fp32},
                   {{0, 2, 2, 1, 64, 128, .pad = 0}, &own},
                   {{0, 2, 2, 1, 128, 64, .pad = 0}, &own},
                   {{0, 2, 2, 1, 192, 64, .pad = 0}, &own},
                   {{0, 2, 2, 1, 72, 128, .pad = 0}, &own},
                   {{0, 2, 2, 1, 72, 64, .pad = 0}, &own},
                   {{0, 2, 2, 1, 64, 64, .scale = -8}, &own},
                   {{0, 20, 2, 1, 64, 64, .scale = -8}, &own}};
    FOR_EACH_TABLE(g) {
        for (size_t i = (size_t)table_ / 2; i < sizeof refused / sizeof refused[0]; i += 3) {
            if (is_bf16(g)) sdpa_twin_extend(t, g, refused[i].c, *refused[i].cache);
        }
    }
}

TEST_MAIN(
    {"every_gradient_kernel_matches_in_every_order", every_gradient_kernel_matches_in_every_order},
    {"every_latent_kernel_matches_in_every_order", every_latent_kernel_matches_in_every_order},
    {"plain_extension_matches_in_every_order", plain_extension_matches_in_every_order},
    {"unaligned_arrays_match", unaligned_arrays_match},
    {"unaligned_caches_match", unaligned_caches_match}, {"odd_strides_match", odd_strides_match},
    {"unaligned_latents_match", unaligned_latents_match},
    {"what_tensor_cores_refuse_matches", what_tensor_cores_refuse_matches})
