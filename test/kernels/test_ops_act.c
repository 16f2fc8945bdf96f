// test_ops_act.c - activations and element-wise addition of every instruction set.
#include <math.h>
#include <string.h>

#include "test/arrays.h"
#include "test/ref_ops.h"

static void check_act(TestCtx *t, const Ops *ops, ActKind kind, size_t N, int F) {
    size_t out = N * (size_t)F, in = kind == ACT_SWIGLU ? 2 * out : out;
    float *x = floats_noise(in, 1, 6), *dout = floats_noise(out, 2, 1);
    double *xd = doubles_of(x, in), *dd = doubles_of(dout, out);
    double *y_ref = doubles_new(out), *dx_ref = doubles_new(in);
    ref_act_forward(y_ref, xd, kind, N, F);
    ref_act_backward(dx_ref, dd, xd, kind, N, F);
    float *y[3], *dx[3];
    for (int i = 0; i < 3; i++) {
        y[i] = floats_new(out);
        dx[i] = floats_new(in);
        set_threads(i + 1);
        ops->act_forward(fx(y[i]), fx(x), kind, N, F);
        ops->act_backward(fx(dx[i]), fx(dout), fx(x), kind, N, F);
    }
    set_threads(0);
    CHECK_CLOSE_F64(t, y[1], y_ref, .what = "out", .n = out, .rel_tol = 4e-7);
    CHECK_CLOSE_F64(t, dx[1], dx_ref, .what = "dinp", .n = in, .rel_tol = 6e-7);
    for (int i = 0; i < 3; i += 2) {
        CHECK_SAME_BITS(t, y[1], y[i], out * sizeof(float));
        CHECK_SAME_BITS(t, dx[1], dx[i], in * sizeof(float));
    }
    for (int i = 0; i < 3; i++) {
        floats_free(t, y[i]);
        floats_free(t, dx[i]);
    }
    floats_free(t, x);
    floats_free(t, dout);
    double *doubles[] = {xd, dd, y_ref, dx_ref};
    for (int i = 0; i < 4; i++)
        mem_free(doubles[i]);
}

static void activations_match_the_reference_at_all_widths(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (const int *F = TEST_WIDTHS; *F; F++) {
            for (int kind = ACT_GELU; kind <= ACT_SWIGLU; kind++) {
                check_act(t, ops, (ActKind)kind, 13, *F);
                check_act(t, ops, (ActKind)kind, 1, *F);
            }
        }
        check_act(t, ops, ACT_SWIGLU, 2, 9000);  // a row in several stretches
    }
}

// The far tails: nothing but zero and one, no NaN from infinity times zero.
static void activations_saturate_cleanly(TestCtx *t) {
    const float x[] = {-1e30f, -1e4f, -120, -30, -0.0f, 0, 30, 120, 1e4f, 1e30f};
    enum { N = sizeof x / sizeof x[0] };
    const Ops *ops;
    FOR_EACH_SET(ops) {
        float in[N], y[N], dx[N], one[N];
        memcpy(in, x, sizeof x);
        for (int i = 0; i < N; i++)
            one[i] = 1;
        ops->act_forward(fx(y), fx(in), ACT_GELU, N, 1);
        ops->act_backward(fx(dx), fx(one), fx(in), ACT_GELU, N, 1);
        for (int i = 0; i < N; i++) {
            bool positive = x[i] > 0;
            // 1e-38 x is as good as zero
            CHECK_MSG(t, positive ? y[i] == x[i] : fabsf(y[i]) <= 2e-38f * fabsf(x[i]),
                      "gelu(%g) = %g", (double)x[i], (double)y[i]);
            float slope = x[i] == 0 ? 0.5f : positive;
            CHECK_MSG(t, fabsf(dx[i] - slope) < 1e-30f, "gelu'(%g) = %g", (double)x[i],
                      (double)dx[i]);
        }
        ops->act_forward(fx(y), fx(in), ACT_RELU2, N - 1, 1);
        CHECK(t, y[0] == 0 && y[4] == 0 && y[6] == 900);
        float gate[2] = {-120, 3}, out;
        ops->act_forward(fx(&out), fx(gate), ACT_SWIGLU, 1, 1);
        CHECK(t, fabsf(out) < 1e-35f);
    }
}

// Small negative results keep their relative precision.
static void gelu_keeps_digits_in_the_negative_tail(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (float x = -5; x < -2; x += 0.01f) {
            float y;
            // through the complement: 1 + tanh(u) cancels even in double only far outside
            double u = 0.79788456080286535588 * ((double)x + 0.044715 * pow((double)x, 3));
            double expected = (double)x / (1 + exp(-2 * u));
            ops->act_forward(fx(&y), fx(&x), ACT_GELU, 1, 1);
            CHECK_MSG(t, fabs((double)y - expected) <= 1e-5 * fabs(expected), "gelu(%g) = %.9g",
                      (double)x, (double)y);
        }
    }
}

static void a_nan_stays_where_it_is(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (int kind = ACT_GELU; kind <= ACT_SWIGLU; kind++) {
            float x[40], y[20], dy[20], dx[40];
            test_noise(x, 40, 1, 1);
            test_noise(dy, 20, 1, 1);
            x[7] = NAN;
            ops->act_forward(fx(y), fx(x), (ActKind)kind, 1, 20);
            ops->act_backward(fx(dx), fx(dy), fx(x), (ActKind)kind, 1, 20);
            CHECK(t, isnan(y[7]) && isfinite(y[6]) && isfinite(y[8]));
            CHECK(t, isnan(dx[7]) && isfinite(dx[6]) && isfinite(dx[8]));
        }
    }
}

static void add_allows_its_output_to_be_an_input(TestCtx *t) {
    enum { N = 40001 };
    const Ops *ops;
    FOR_EACH_SET(ops) {
        float *a = floats_noise(N, 1, 1), *b = floats_noise(N, 2, 1), *out = floats_new(N);
        ops->add(fx(out), fx(a), fx(b), N);
        for (int i = 0; i < N; i++)
            CHECK(t, out[i] == a[i] + b[i]);
        ops->add(fx(b), fx(a), fx(b), N);
        CHECK_SAME_BITS(t, out, b, N * sizeof(float));
        float *again = floats_noise(N, 2, 1);
        ops->add(fx(a), fx(a), fx(again), N);
        CHECK_SAME_BITS(t, out, a, N * sizeof(float));
        floats_free(t, a);
        floats_free(t, b);
        floats_free(t, again);
        floats_free(t, out);
    }
}

TEST_MAIN({"activations_match_the_reference_at_all_widths",
           activations_match_the_reference_at_all_widths},
          {"activations_saturate_cleanly", activations_saturate_cleanly},
          {"gelu_keeps_digits_in_the_negative_tail", gelu_keeps_digits_in_the_negative_tail},
          {"a_nan_stays_where_it_is", a_nan_stays_where_it_is},
          {"add_allows_its_output_to_be_an_input", add_allows_its_output_to_be_an_input})
