// test_ops_classifier.c - loss, gradient of logits and soft-cap of every instruction set.
#include <math.h>
#include <string.h>

#include "test/arrays.h"
#include "test/ref_ops.h"

typedef struct Case {
    size_t n;
    int V, Vp;
    float scale, softcap;
} Case;

static int *targets_make(size_t n, int V) {
    int *targets = mem_alloc(n, sizeof(int));
    for (size_t i = 0; i < n; i++)
        targets[i] = i % 5 == 3 ? -1 : (int)((i * 7919 + (size_t)V - 1) % (size_t)V);
    return targets;
}

static void check_case(TestCtx *t, const Ops *ops, Case c) {
    const float dscale = 0.125f;
    size_t all = c.n * (size_t)c.Vp;
    int *targets = targets_make(c.n, c.V);
    float *logits = floats_noise(all, 1, c.scale), *losses = floats_new(c.n);
    for (size_t i = 0; i < all; i++) {
        if ((int)(i % (size_t)c.Vp) >= c.V) logits[i] = NAN;  // padding must not be read
    }
    double *xd = doubles_of(logits, all), *dx_ref = doubles_new(all), *ref = doubles_new(c.n);
    ref_classifier(dx_ref, ref, xd, targets, c.n, c.V, c.Vp, (double)c.softcap, (double)dscale);
    float *x = floats_new(all), *first = floats_new(all);
    for (int threads = 1; threads <= 3; threads++) {
        set_threads(threads);
        memcpy(x, logits, all * sizeof(float));
        ops->classifier(fx(x), losses, targets, c.n, c.V, c.Vp, c.softcap, dscale, false);
        CHECK_CLOSE_F64(t, losses, ref, .what = "loss", .n = c.n, .rel_tol = 3e-7,
                        .abs_tol = (double)c.scale * 2e-7);
        CHECK_SAME_BITS(t, x, logits, all * sizeof(float));
        ops->classifier(fx(x), losses, targets, c.n, c.V, c.Vp, c.softcap, dscale, true);
        CHECK_CLOSE_F64(t, losses, ref, .what = "loss", .n = c.n, .rel_tol = 3e-7,
                        .abs_tol = (double)c.scale * 2e-7);
        CHECK_CLOSE_F64(t, x, dx_ref, .what = "dlogits", .n = all, .abs_tol = 1e-7 * (double)dscale,
                        .rel_tol = 1e-6);
        for (size_t i = 0; i < all; i++) {
            if ((int)(i % (size_t)c.Vp) >= c.V) CHECK(t, x[i] == 0);
        }
        if (threads == 1) memcpy(first, x, all * sizeof(float));
        CHECK_SAME_BITS(t, first, x, all * sizeof(float));
    }
    set_threads(0);
    floats_free(t, logits);
    floats_free(t, losses);
    floats_free(t, x);
    floats_free(t, first);
    mem_free(targets);
    mem_free(xd);
    mem_free(dx_ref);
    mem_free(ref);
}

static void losses_and_gradients_match_the_reference(TestCtx *t) {
    static const int vocabularies[][2] = {{1, 8},     {2, 2},       {7, 128},
                                          {257, 384}, {1000, 1024}, {50257, 50304}};
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (size_t i = 0; i < sizeof vocabularies / sizeof vocabularies[0]; i++) {
            int V = vocabularies[i][0], Vp = vocabularies[i][1];
            size_t n = V > 10000 ? 3 : 21;
            check_case(t, ops, (Case){n, V, Vp, 4, 0});
            check_case(t, ops, (Case){n, V, Vp, 20, 15});
        }
    }
}

// Differences up to 240: exp of the raw values would overflow.
static void large_logits_are_exact_and_finite(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        check_case(t, ops, (Case){11, 300, 384, 120, 0});
        check_case(t, ops, (Case){11, 300, 384, 120, 30});
    }
}

// A uniform row over the whole vocabulary: a naive fp32 sum would be off in the fifth digit.
static void sum_of_a_large_vocabulary_keeps_its_digits(TestCtx *t) {
    enum { V = 50257, VP = 50304 };
    const Ops *ops;
    FOR_EACH_SET(ops) {
        float *x = floats_new(VP), loss;
        for (int i = 0; i < VP; i++)
            x[i] = 3;
        const int target = 17;
        ops->classifier(fx(x), &loss, &target, 1, V, VP, 0, 1, false);
        CHECK_MSG(t, fabs((double)loss - log(V)) < 1e-6, "loss %.9g, expected %.9g", (double)loss,
                  log(V));
        floats_free(t, x);
    }
}

static void bad_logits_are_reported_not_hidden(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (int backward = 0; backward < 2; backward++) {
            enum { N = 5, V = 21, VP = 24 };
            float *x = floats_noise(N * VP, 1, 1), losses[N];
            const int targets[N] = {0, 3, 5, -1, 2};
            x[20] = NAN;           // row 0, in the tail
            x[VP + 3] = INFINITY;  // row 1, the target
            for (int v = 0; v < V; v++)
                x[2 * VP + v] = -INFINITY;  // row 2
            x[3 * VP] = NAN;                // row 3 has no target
            x[4 * VP + 7] = -INFINITY;      // row 4: just impossible
            ops->classifier(fx(x), losses, targets, N, V, VP, 0, 1, backward);
            CHECK(t, !isfinite(losses[0]) && !isfinite(losses[1]) && !isfinite(losses[2]));
            CHECK(t, losses[3] == 0 && isfinite(losses[4]));
            if (backward) CHECK(t, x[3 * VP] == 0 && x[4 * VP + 7] == 0);
            // the impossible token as target
            const int impossible = 7;
            ops->classifier(fx(x + 4 * VP), losses, &impossible, 1, V, VP, 0, 1, false);
            CHECK(t, backward || losses[0] == INFINITY);
            floats_free(t, x);
        }
    }
}

static void softcap_matches_the_reference(TestCtx *t) {
    enum { N = 70003 };
    const Ops *ops;
    FOR_EACH_SET(ops) {
        float *x = floats_noise(N, 1, 100), *y = floats_new(N), *z = floats_new(N);
        for (int i = 0; i < 1000; i++)
            x[i] *= 1e-4f;
        for (int k = 0; k < 3; k++) {
            set_threads(k + 1);
            memcpy(k ? z : y, x, N * sizeof(float));
            ops->softcap(fx(k ? z : y), N, 15);
            if (k) CHECK_SAME_BITS(t, y, z, N * sizeof(float));
        }
        set_threads(0);
        for (int i = 0; i < N; i++) {
            double expected = ref_softcap((double)x[i], 15);
            CHECK_MSG(t, fabs((double)y[i] - expected) <= 5e-7 * fabs(expected), "softcap(%g) = %g",
                      (double)x[i], (double)y[i]);
        }
        memcpy(y, x, N * sizeof(float));
        ops->softcap(fx(y), N, 0);
        CHECK_SAME_BITS(t, y, x, N * sizeof(float));
        floats_free(t, x);
        floats_free(t, y);
        floats_free(t, z);
    }
}

static void losses_add_up_in_double(TestCtx *t) {
    enum { N = 100000 };
    const Ops *ops;
    FOR_EACH_SET(ops) {
        float *losses = floats_new(N);
        for (int i = 0; i < N; i++)
            losses[i] = 0.1f;
        StepState state;
        ops->step_begin(&state);
        CHECK(t, state.loss_sum == 0 && state.grad_sumsq == 0 && state.clip == 1 &&
                     state.skip == 0 && state.first_bad == -1);
        ops->loss_add(&state, losses, N, 0.5);
        ops->loss_add(&state, losses, N, 0.25);
        CHECK(t, fabs(state.loss_sum - 0.75 * N * (double)0.1f) < 1e-8);
        floats_free(t, losses);
    }
}

TEST_MAIN({"losses_and_gradients_match_the_reference", losses_and_gradients_match_the_reference},
          {"large_logits_are_exact_and_finite", large_logits_are_exact_and_finite},
          {"sum_of_a_large_vocabulary_keeps_its_digits",
           sum_of_a_large_vocabulary_keeps_its_digits},
          {"bad_logits_are_reported_not_hidden", bad_logits_are_reported_not_hidden},
          {"softcap_matches_the_reference", softcap_matches_the_reference},
          {"losses_add_up_in_double", losses_add_up_in_double})
