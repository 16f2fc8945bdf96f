// test_ops_optim.c - gradient norm, AdamW and the parts of Muon of every instruction set.
#include <math.h>
#include <string.h>

#include "test/arrays.h"
#include "test/ref_ops.h"

static const size_t SIZES[] = {1, 7, 64, 1000, 8192, 40003, 0};

// --- gradient norm
static void norm_matches_double_however_tensors_are_cut(TestCtx *t) {
    enum { N = 300007 };
    const Ops *ops;
    FOR_EACH_SET(ops) {
        float *g = floats_noise(N, 1, 3);
        double *d = doubles_of(g, N), expected = ref_sumsq(d, N);
        StepState whole, cut, one;
        ops->step_begin(&whole);
        ops->grad_sumsq(&whole, g, N, 0);
        CHECK(t, fabs(whole.grad_sumsq - expected) <= 1e-12 * expected);
        ops->step_begin(&cut);
        for (size_t i = 0, step = 1; i < N; i += step, step = 2 * step + 1)
            ops->grad_sumsq(&cut, g + i, min_size(step, N - i), (int)i);
        CHECK(t, fabs(cut.grad_sumsq - expected) <= 1e-12 * expected);
        set_threads(1);
        ops->step_begin(&one);
        ops->grad_sumsq(&one, g, N, 0);
        set_threads(3);
        ops->step_begin(&cut);
        ops->grad_sumsq(&cut, g, N, 0);
        set_threads(0);
        CHECK(t, one.grad_sumsq == whole.grad_sumsq && cut.grad_sumsq == whole.grad_sumsq);
        floats_free(t, g);
        mem_free(d);
    }
}

static void squares_of_extreme_values_survive(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        float g[100];
        for (int i = 0; i < 100; i++)
            g[i] = i % 2 ? 3e38f : 1e-30f;
        StepState s;
        ops->step_begin(&s);
        ops->grad_sumsq(&s, g, 100, 0);
        CHECK(t, isfinite(s.grad_sumsq) && s.first_bad == -1);
        CHECK(t, fabs(s.grad_sumsq / (50 * (double)3e38f * (double)3e38f) - 1) < 1e-12);
        ops->grad_finish(&s, 1);  // the norm, 2e39, is no float
        CHECK(t, s.skip == 1);
        for (int i = 0; i < 100; i++)
            g[i] = 1e-30f;
        ops->step_begin(&s);
        ops->grad_sumsq(&s, g, 100, 0);
        CHECK(t, fabs(s.grad_sumsq / (100 * (double)1e-30f * (double)1e-30f) - 1) < 1e-12);
    }
}

static void the_first_bad_tensor_is_named(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        const float bad[] = {NAN, INFINITY, -INFINITY};
        for (size_t i = 0; i < 20000; i += 6661) {
            float *g = floats_noise(20001, 1, 1);
            g[i] = bad[i % 3];
            StepState s;
            ops->step_begin(&s);
            ops->grad_sumsq(&s, g, 20001, 9);
            ops->grad_sumsq(&s, g + i + 1, 20000 - i, 2);
            ops->grad_sumsq(&s, g, 20001, 5);
            ops->grad_sumsq(&s, g, 20001, 7);
            CHECK_MSG(t, s.first_bad == 5, "first bad tensor %d, expected 5", s.first_bad);
            ops->grad_finish(&s, 1);
            CHECK(t, s.skip == 1);
            floats_free(t, g);
        }
    }
}

static void clip_and_skip_follow_norm_and_loss(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        StepState s;
        const float g[2] = {3, 4};
        ops->step_begin(&s);
        ops->grad_sumsq(&s, g, 2, 0);
        ops->grad_finish(&s, 1);
        CHECK(t, s.grad_norm == 5 && s.clip == 0.2f && s.skip == 0);
        ops->grad_finish(&s, 10);
        CHECK(t, s.clip == 1);
        ops->grad_finish(&s, 0);
        CHECK(t, s.clip == 1);
        s.loss_sum = (double)NAN;
        ops->grad_finish(&s, 1);
        CHECK(t, s.skip == 1);
        ops->step_begin(&s);
        ops->grad_finish(&s, 1);  // no gradient at all
        CHECK(t, s.grad_norm == 0 && s.clip == 1 && s.skip == 0);
    }
}

// --- AdamW
typedef struct Adam {
    float *p, *copy, *m, *v, *g;
} Adam;

static Adam adam_make(size_t n) {
    Adam a = {floats_noise(n, 1, 1), floats_new(n), floats_noise(n, 2, 1), floats_noise(n, 3, 1),
              floats_noise(n, 4, 3)};
    for (size_t i = 0; i < n; i++)
        a.v[i] *= a.v[i];
    return a;
}
static void adam_free(TestCtx *t, Adam *a) {
    float *floats[] = {a->p, a->copy, a->m, a->v, a->g};
    for (int i = 0; i < 5; i++)
        floats_free(t, floats[i]);
}

static void check_adam(TestCtx *t, const Ops *ops, size_t n, bool master) {
    AdamWArgs args = {TYPE_F32, 0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.271f, 0.142625f, 0};
    StepState state = {.clip = 0.5f, .first_bad = -1};
    Adam a = adam_make(n), one = adam_make(n);
    double *p = doubles_of(a.p, n), *m = doubles_of(a.m, n), *v = doubles_of(a.v, n);
    for (size_t i = 0; i < n; i++)
        ref_adamw(&p[i], &m[i], &v[i], (double)a.g[i], (double)state.clip, &args);
    ops->adamw(master ? a.copy : a.p, master ? a.p : NULL, a.m, a.v, a.g, n, &args, &state);
    CHECK_CLOSE_F64(t, a.p, p, .what = "param", .n = n, .rel_tol = 3e-7);
    CHECK_CLOSE_F64(t, a.m, m, .what = "m", .n = n, .rel_tol = 2e-7);
    CHECK_CLOSE_F64(t, a.v, v, .what = "v", .n = n, .rel_tol = 2e-7);
    if (master) CHECK_SAME_BITS(t, a.copy, a.p, n * sizeof(float));
    set_threads(1);
    ops->adamw(one.p, NULL, one.m, one.v, one.g, n, &args, &state);
    set_threads(0);
    CHECK_SAME_BITS(t, a.p, one.p, n * sizeof(float));
    CHECK_SAME_BITS(t, a.v, one.v, n * sizeof(float));
    state.skip = 1;
    ops->adamw(a.p, NULL, a.m, a.v, a.g, n, &args, &state);
    CHECK_SAME_BITS(t, a.p, one.p, n * sizeof(float));
    CHECK_SAME_BITS(t, a.m, one.m, n * sizeof(float));
    CHECK_SAME_BITS(t, a.v, one.v, n * sizeof(float));
    adam_free(t, &a);
    adam_free(t, &one);
    mem_free(p);
    mem_free(m);
    mem_free(v);
}

static void adamw_matches_the_reference_and_skips(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (const size_t *n = SIZES; *n; n++) {
            check_adam(t, ops, *n, false);
            check_adam(t, ops, *n, true);
        }
    }
}

// The gradient of a parameter that was never used is zero: decay moves it, Adam must not (0/0).
static void adamw_of_zero_gradients_only_decays(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        AdamWArgs args = {TYPE_FX, 0.5f, 0.9f, 0.95f, 1e-10f, 0.5f, 0.1f, 0.05f, 0};
        StepState state = {.clip = 1};
        float p[3] = {1, -2, 4}, m[3] = {0}, v[3] = {0}, g[3] = {0};
        ops->adamw(p, NULL, m, v, g, 3, &args, &state);
        CHECK(t, p[0] == 0.75f && p[1] == -1.5f && p[2] == 3);
    }
}

// --- Muon
static void muon_momentum_matches_the_reference_and_skips(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (const size_t *n = SIZES; *n; n++) {
            for (int nesterov = 0; nesterov < 2; nesterov++) {
                StepState state = {.clip = 0.25f};
                float *out = floats_new(*n), *mom = floats_noise(*n, 1, 1);
                float *g = floats_noise(*n, 2, 4);
                double *md = doubles_of(mom, *n), *od = doubles_new(*n);
                for (size_t i = 0; i < *n; i++)
                    od[i] = ref_muon_momentum(&md[i], (double)g[i], 0.25, (double)0.95f, nesterov);
                ops->muon_momentum(out, mom, g, *n, 0.95f, nesterov, &state);
                CHECK_CLOSE_F64(t, out, od, .what = "out", .n = *n, .rel_tol = 3e-7);
                CHECK_CLOSE_F64(t, mom, md, .what = "momentum", .n = *n, .rel_tol = 3e-7);
                state.skip = 1;
                float *kept = floats_new(*n), *out_kept = floats_new(*n);
                memcpy(kept, mom, *n * sizeof(float));
                memcpy(out_kept, out, *n * sizeof(float));
                ops->muon_momentum(out, mom, g, *n, 0.95f, nesterov, &state);
                CHECK_SAME_BITS(t, kept, mom, *n * sizeof(float));
                CHECK_SAME_BITS(t, out_kept, out, *n * sizeof(float));
                float *floats[] = {out, mom, g, kept, out_kept};
                for (int i = 0; i < 5; i++)
                    floats_free(t, floats[i]);
                mem_free(md);
                mem_free(od);
            }
        }
    }
}

static void check_normalize(TestCtx *t, const Ops *ops, size_t n, int batch, size_t stride) {
    size_t all = stride * (size_t)batch;
    float *x = floats_noise(all, 1, 2), *y = floats_noise(all, 1, 2), *z = floats_noise(all, 1, 2);
    double *d = doubles_of(x, all);
    for (int b = 0; b < batch; b++) {
        double *row = d + (size_t)b * stride, norm = sqrt(ref_sumsq(row, n)) + (double)1e-7f;
        for (size_t i = 0; i < n; i++)
            row[i] /= norm;
    }
    ops->muon_normalize(x, n, batch, stride, 1e-7f);
    CHECK_CLOSE_F64(t, x, d, .what = "x", .n = all, .rel_tol = 0, .abs_tol = 2e-7);
    set_threads(1);
    ops->muon_normalize(y, n, batch, stride, 1e-7f);
    set_threads(3);
    ops->muon_normalize(z, n, batch, stride, 1e-7f);
    set_threads(0);
    CHECK_SAME_BITS(t, x, y, all * sizeof(float));
    CHECK_SAME_BITS(t, x, z, all * sizeof(float));
    floats_free(t, x);
    floats_free(t, y);
    floats_free(t, z);
    mem_free(d);
}

static void muon_normalize_scales_each_matrix(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        check_normalize(t, ops, 1, 1, 1);
        check_normalize(t, ops, 100, 7, 100);
        check_normalize(t, ops, 5003, 5, 5120);  // the gaps stay as they are
        check_normalize(t, ops, 1100000, 2, 1100000);
        float zero[5] = {0};  // a gradient of nothing stays nothing, not 0/0
        ops->muon_normalize(zero, 5, 1, 5, 1e-7f);
        CHECK(t, zero[0] == 0 && zero[4] == 0);
    }
}

static void muon_apply_matches_the_formula_and_skips(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (const size_t *n = SIZES; *n; n++) {
            StepState state = {.clip = 1};
            float *p = floats_noise(*n, 1, 1), *copy = floats_new(*n), *u = floats_noise(*n, 2, 1);
            double *d = doubles_of(p, *n);
            for (size_t i = 0; i < *n; i++)
                d[i] -= (double)0.02f * ((double)0.1f * d[i] + (double)u[i]);
            ops->muon_apply(copy, p, TYPE_FX, u, *n, 0.02f, 0.1f, 0, &state);
            CHECK_CLOSE_F64(t, p, d, .what = "param", .n = *n, .rel_tol = 2e-7);
            CHECK_SAME_BITS(t, copy, p, *n * sizeof(float));
            state.skip = 1;
            ops->muon_apply(p, NULL, TYPE_F32, u, *n, 0.02f, 0.1f, 0, &state);
            CHECK_SAME_BITS(t, copy, p, *n * sizeof(float));
            state.skip = 0;
            ops->muon_apply(p, NULL, TYPE_F32, u, *n, 0.02f, 0.1f, 0, &state);
            CHECK(t, memcmp(copy, p, *n * sizeof(float)) != 0);
            floats_free(t, p);
            floats_free(t, copy);
            floats_free(t, u);
            mem_free(d);
        }
    }
}

static void scale_copy_allows_itself(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (const size_t *n = SIZES; *n; n++) {
            float *x = floats_noise(*n, 1, 1), *y = floats_new(*n);
            ops->scale_copy(y, x, *n, 1.5f);
            for (size_t i = 0; i < *n; i++)
                CHECK(t, y[i] == x[i] * 1.5f);
            ops->scale_copy(x, x, *n, 1.5f);
            CHECK_SAME_BITS(t, x, y, *n * sizeof(float));
            floats_free(t, x);
            floats_free(t, y);
        }
    }
}

static void axpy_adds_a_multiple(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (const size_t *n = SIZES; *n; n++) {
            float *x = floats_noise(*n, 1, 1), *y = floats_noise(*n, 2, 1);
            double *d = doubles_of(y, *n);
            for (size_t i = 0; i < *n; i++)
                d[i] += -0.3 * (double)x[i];
            ops->axpy(y, x, *n, -0.3f);
            CHECK_CLOSE_F64(t, y, d, .what = "y", .n = *n, .rel_tol = 1.5e-7);
            floats_free(t, x);
            floats_free(t, y);
            mem_free(d);
        }
    }
}

TEST_MAIN({"norm_matches_double_however_tensors_are_cut",
           norm_matches_double_however_tensors_are_cut},
          {"squares_of_extreme_values_survive", squares_of_extreme_values_survive},
          {"the_first_bad_tensor_is_named", the_first_bad_tensor_is_named},
          {"clip_and_skip_follow_norm_and_loss", clip_and_skip_follow_norm_and_loss},
          {"adamw_matches_the_reference_and_skips", adamw_matches_the_reference_and_skips},
          {"adamw_of_zero_gradients_only_decays", adamw_of_zero_gradients_only_decays},
          {"muon_momentum_matches_the_reference_and_skips",
           muon_momentum_matches_the_reference_and_skips},
          {"muon_normalize_scales_each_matrix", muon_normalize_scales_each_matrix},
          {"muon_apply_matches_the_formula_and_skips", muon_apply_matches_the_formula_and_skips},
          {"scale_copy_allows_itself", scale_copy_allows_itself},
          {"axpy_adds_a_multiple", axpy_adds_a_multiple})
