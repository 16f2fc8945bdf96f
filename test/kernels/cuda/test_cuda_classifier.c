// test_cuda_classifier.c - loss and its gradient, CUDA tables against the CPU's.
#include <math.h>

#include "test/kernels/cuda/twin.h"

static void check_case(TestCtx *t, const Ops *g, size_t n, int V, int Vp, float softcap,
                       bool backward) {
    const Ops *o = ops_cpu();
    int *targets = mem_alloc(n, sizeof(int));
    for (size_t i = 0; i < n; i++)
        targets[i] = i % 4 == 1 ? -1 : (int)(i * 7919 % (size_t)V);
    targets[0] = V - 1;
    int *gtargets = twin_ints(g, targets, n);
    Twin x = twin_noise(g, TYPE_FX, n * (size_t)Vp, 1, 12), losses = twin_new(g, TYPE_F32, n);
    o->classifier(cpu(x), losses.cpu, targets, n, V, Vp, softcap, 0.25f, backward);
    g->classifier(gpu(x), losses.gpu, gtargets, n, V, Vp, softcap, 0.25f, backward);
    // An error of 1e-6 in the capped logits of bf16 is allowed for its faster tanh.
    double cap = softcap > 0 && is_bf16(g) ? 4e-6 : 0;
    TWIN_CHECK(t, g, losses, twin_tol(g, TYPE_F32, (size_t)V), 1e-6 + cap);
    // Without gradients the logits stay.
    TWIN_CHECK(t, g, x, backward ? twin_tol(g, TYPE_FX, (size_t)V) + cap : 0, backward ? 1e-7 : 0);
    TWIN_FREE(t, g, &x, &losses);
    g->free(gtargets);
    mem_free(targets);
}

static void losses_and_gradients_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        check_case(t, g, 5, 50, 128, 0, true);
        check_case(t, g, 3, 257, 384, 15.0f, true);
        check_case(t, g, 3, 127, 127, 0, true);
        check_case(t, g, 2, 20, 20, 30.0f, false);
        check_case(t, g, 2, 60, 64, 0, false);
        check_case(t, g, 1, 8300, 8320, 15.0f, true);
        check_case(t, g, 1, 1, 128, 0, true);
        check_case(t, g, 2, 1100, 1101, 0, true);
        check_case(t, g, 3, 320, 320, 15.0f, true);
        twin_misalign(1);
        check_case(t, g, 2, 72, 72, 0, true);
    }
}

// Rows of +-120, of equal logits, of one that stands out, and one bad row among good ones.
static void extreme_logits_match(TestCtx *t) {
    const Ops *g;
    enum { N = 5, V = 70, VP = 72 };
    int targets[N] = {0, 69, 3, 5, 7};
    float x[N * VP];
    for (int i = 0; i < N * VP; i++) {
        int row = i / VP, col = i % VP;
        x[i] = row == 0 ? (col % 3 ? 120.0f : -120.0f) : row == 1 ? 7.0f : (float)(col % 5);
        if (row == 2) x[i] = col == 3 ? 1e30f : -1e30f;
        if (row == 3) x[i] = col == 60 ? NAN : 0.0f;
    }
    FOR_EACH_TABLE(g) {
        for (int capped = 0; capped < 2; capped++) {
            int *gtargets = twin_ints(g, targets, N);
            float cap = capped ? 15.0f : 0;
            Twin logits = twin_of(g, TYPE_FX, x, N * VP), losses = twin_new(g, TYPE_F32, N);
            ops_cpu()->classifier(cpu(logits), losses.cpu, targets, N, V, VP, cap, 0.5f, true);
            g->classifier(gpu(logits), losses.gpu, gtargets, N, V, VP, cap, 0.5f, true);
            TWIN_CHECK_EACH(t, g, losses, 1e-5, 1.0);
            TWIN_CHECK_EACH(t, g, logits, is_bf16(g) ? 0x1p-7 : 1e-4, 1e-2);
            TWIN_FREE(t, g, &logits, &losses);
            g->free(gtargets);
        }
    }
}

static void bad_logits_give_bad_losses(TestCtx *t) {
    const Ops *g;
    float bad[] = {NAN, INFINITY};
    FOR_EACH_TABLE(g) {
        for (int i = 0; i < 2; i++) {
            float x[128] = {0}, loss[1];
            int target[] = {3};
            x[100] = bad[i];
            Twin logits = twin_of(g, TYPE_FX, x, 128), losses = twin_new(g, TYPE_F32, 1);
            int *gt = twin_ints(g, target, 1);
            g->classifier(gpu(logits), losses.gpu, gt, 1, 128, 128, 0, 1, true);
            g->download_bytes(loss, losses.gpu, sizeof loss);
            CHECK(t, !isfinite(loss[0]));
            TWIN_FREE(t, g, &logits, &losses);
            g->free(gt);
        }
    }
}

static void minus_infinity_has_no_probability(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        // A thread sees some logits of -inf, nothing else, or nothing else at first.
        for (int n = 64; n <= 2600; n += n == 64 ? 1 : 2535) {
            float x[2600], loss[1];
            int target[] = {n - 3}, eighth = n == 64 ? 8 : 1;
            for (int i = 0; i < n; i++)
                x[i] = eighth == 8 && i % 8 == 5 ? 1.0f : -INFINITY;
            x[n - 3] = 1.0f;
            Twin logits = twin_of(g, TYPE_FX, x, (size_t)n), losses = twin_new(g, TYPE_F32, 1);
            int *gt = twin_ints(g, target, 1);
            g->classifier(gpu(logits), losses.gpu, gt, 1, n, n, 0, 1, true);
            g->download_bytes(loss, losses.gpu, sizeof loss);
            CHECK(t, fabsf(loss[0] - logf((float)eighth)) <= 1e-6f);
            float *d = twin_download(g, &logits), p = 1.0f / (float)eighth;
            CHECK(t, d[0] == 0.0f && d[n - 3] == p - 1.0f && d[5] == (eighth == 8 ? p : 0.0f));
            mem_free(d);
            TWIN_FREE(t, g, &logits, &losses);
            g->free(gt);
        }
    }
}

static void check_softcap(TestCtx *t, const Ops *g, size_t n) {
    Twin x = twin_noise(g, TYPE_FX, n, 1, 50);
    ops_cpu()->softcap(cpu(x), n, 15.0f);
    g->softcap(gpu(x), n, 15.0f);
    TWIN_CHECK(t, g, x, twin_tol(g, TYPE_FX, 8), 0);
    ops_cpu()->softcap(cpu(x), n, 0);
    g->softcap(gpu(x), n, 0);
    TWIN_CHECK(t, g, x, twin_tol(g, TYPE_FX, 8), 0);
    twin_free(t, g, &x);
}

static void softcap_matches(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        for (size_t n = 5; n < 300; n = n * 5 + 3)
            check_softcap(t, g, n);
        check_softcap(t, g, 8);
        check_softcap(t, g, 2064);
        twin_misalign(1);
        check_softcap(t, g, 64);
    }
}

TEST_MAIN({"losses_and_gradients_match", losses_and_gradients_match},
          {"extreme_logits_match", extreme_logits_match},
          {"bad_logits_give_bad_losses", bad_logits_give_bad_losses},
          {"minus_infinity_has_no_probability", minus_infinity_has_no_probability},
          {"softcap_matches", softcap_matches})
