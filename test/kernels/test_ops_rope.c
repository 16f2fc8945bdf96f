// test_ops_rope.c - rotation and norm of queries and keys of every instruction set.
#include <math.h>
#include <string.h>

#include "test/arrays.h"
#include "test/ref_ops.h"

enum { B = 2, T = 19, PLACES = 40 };
static const int POS[B] = {21, 3};

typedef struct Case {
    int NH, HS;
    size_t gap;  // elements behind the heads of a row; the output has twice that
    bool rotate, norm, pos, in_place;
    int between;  // elements between heads
} Case;

static float *rope_table(int HS) {
    float *table = floats_new((size_t)PLACES * (size_t)HS);
    for (int p = 0; p < PLACES; p++) {
        for (int i = 0; i < HS / 2; i++) {
            double angle = p * pow(10000, -2.0 * i / HS);
            table[(size_t)p * (size_t)HS + 2 * (size_t)i] = (float)cos(angle);
            table[(size_t)p * (size_t)HS + 2 * (size_t)i + 1] = (float)sin(angle);
        }
    }
    return table;
}

static size_t width_of(const RopeArgs *a) {
    return (size_t)a->NH * a->head_stride;
}

// Elements between the heads and behind them belong to others.
static void check_gaps(TestCtx *t, const float *x, const float *before, size_t ld,
                       const RopeArgs *a) {
    size_t bad = 0;
    for (size_t i = 0; i < B * T * ld; i++) {
        bool head = i % ld < width_of(a) && i % ld % a->head_stride < (size_t)a->HS;
        bad += !head && memcmp(x + i, before + i, sizeof *x) != 0;
    }
    CHECK_MSG(t, bad == 0, "%zu elements outside the heads were written", bad);
}

static void check_heads(TestCtx *t, const char *what, const float *x, const double *expected,
                        size_t ld, const RopeArgs *a, double tol) {
    for (size_t i = 0; i < B * T * (size_t)a->NH; i++) {
        size_t at = i / (size_t)a->NH * ld + i % (size_t)a->NH * a->head_stride;
        CHECK_CLOSE_F64(t, x + at, expected + at, .what = what, .n = (size_t)a->HS, .rel_tol = tol,
                        .abs_tol = tol);
    }
}

static void check_forward(TestCtx *t, const Ops *ops, const Case *c, const RopeArgs *a,
                          const float *x) {
    size_t n_in = B * T * a->ld_inp, n_out = B * T * a->ld_out;
    size_t heads = B * T * (size_t)c->NH;
    double *xd = doubles_of(x, n_in), *y_ref = doubles_new(n_out), *rstd_ref = doubles_new(heads);
    ref_qk_norm_rope_forward(y_ref, rstd_ref, xd, a);
    float *first = NULL;
    for (int threads = 1; threads <= 3; threads++) {
        float *in = floats_new(n_in), *rstd = floats_new(heads);
        memcpy(in, x, n_in * sizeof(float));
        float *out = c->in_place ? in : floats_new(n_out), *before = floats_new(n_out);
        memcpy(before, out, n_out * sizeof(float));
        set_threads(threads);
        ops->qk_norm_rope_forward(fx(out), c->norm ? rstd : NULL, fx(in), a);
        check_heads(t, "out", out, y_ref, a->ld_out, a, 1e-6);
        check_gaps(t, out, before, a->ld_out, a);
        if (c->norm)
            CHECK_CLOSE_F64(t, rstd, rstd_ref, .what = "rstd", .n = heads, .rel_tol = 4e-7);
        if (first)
            CHECK_SAME_BITS(t, first, out, n_out * sizeof(float));
        else {
            first = floats_new(n_out);
            memcpy(first, out, n_out * sizeof(float));
        }
        floats_free(t, in);
        floats_free(t, rstd);
        floats_free(t, before);
        if (!c->in_place) floats_free(t, out);
    }
    set_threads(0);
    floats_free(t, first);
    mem_free(xd);
    mem_free(y_ref);
    mem_free(rstd_ref);
}

static void check_backward(TestCtx *t, const Ops *ops, const Case *c, const RopeArgs *a,
                           const float *x) {
    size_t n_in = B * T * a->ld_inp, n_out = B * T * a->ld_out;
    size_t heads = B * T * (size_t)c->NH;
    float *y = floats_new(n_out), *rstd = floats_new(heads), *dout = floats_noise(n_out, 5, 1);
    ops->qk_norm_rope_forward(fx(y), c->norm ? rstd : NULL, fx((float *)x), a);
    double *xd = doubles_of(x, n_in), *dd = doubles_of(dout, n_out), *ref = doubles_new(n_in);
    ref_qk_norm_rope_backward(ref, dd, xd, a);
    float *first = NULL;
    for (int threads = 1; threads <= 3; threads++) {
        float *d = floats_new(n_out);
        memcpy(d, dout, n_out * sizeof(float));
        float *dx = c->in_place ? d : floats_new(n_in), *before = floats_new(n_in);
        memcpy(before, dx, n_in * sizeof(float));
        set_threads(threads);
        ops->qk_norm_rope_backward(fx(dx), fx(d), c->norm ? fx(y) : NULL, a->ld_out, rstd, a);
        check_heads(t, "dinp", dx, ref, a->ld_inp, a, 2e-6);
        check_gaps(t, dx, before, a->ld_inp, a);
        if (first)
            CHECK_SAME_BITS(t, first, dx, n_in * sizeof(float));
        else {
            first = floats_new(n_in);
            memcpy(first, dx, n_in * sizeof(float));
        }
        floats_free(t, d);
        floats_free(t, before);
        if (!c->in_place) floats_free(t, dx);
    }
    set_threads(0);
    floats_free(t, first);
    floats_free(t, y);
    floats_free(t, rstd);
    floats_free(t, dout);
    mem_free(xd);
    mem_free(dd);
    mem_free(ref);
}

static void check_case(TestCtx *t, const Ops *ops, Case c) {
    size_t stride = (size_t)(c.HS + c.between), ld = (size_t)c.NH * stride + c.gap;
    float *table = rope_table(c.HS);
    RopeArgs a = {.B = B,
                  .T = T,
                  .NH = c.NH,
                  .HS = c.HS,
                  .head_stride = stride,
                  .ld_inp = ld,
                  .ld_out = c.in_place ? ld : ld + c.gap,
                  .rope = c.rotate ? table : NULL,
                  .pos = c.pos ? POS : NULL,
                  .norm = c.norm,
                  .eps = 1e-6f};
    float *x = floats_noise(B * T * ld, 3, 2);
    check_forward(t, ops, &c, &a, x);
    if (c.between == 0) {
        a.head_stride = 0;  // means HS
        float *y = floats_new(B * T * a.ld_out), *z = floats_new(B * T * a.ld_out);
        ops->qk_norm_rope_forward(fx(y), NULL, fx(x), &a);
        a.head_stride = stride;
        ops->qk_norm_rope_forward(fx(z), NULL, fx(x), &a);
        CHECK_SAME_BITS(t, y, z, B * T * a.ld_out * sizeof(float));
        floats_free(t, y);
        floats_free(t, z);
    }
    check_backward(t, ops, &c, &a, x);
    floats_free(t, x);
    floats_free(t, table);
}

static void heads_match_the_reference_for_all_switches(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (int bits = 0; bits < 16; bits++) {
            bool rotate = bits & 1, norm = bits & 2, pos = bits & 4, in_place = bits & 8;
            check_case(t, ops, (Case){3, 64, 7, rotate, norm, pos, in_place, 5});
            check_case(t, ops, (Case){2, 10, 0, rotate, norm, pos, in_place, 0});
        }
    }
}

static void heads_match_the_reference_at_all_sizes(TestCtx *t) {
    static const int sizes[] = {2, 8, 46, 64, 72, 96, 128, 320};
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            check_case(t, ops, (Case){5, sizes[i], 3, true, true, true, false, 0});
            check_case(t, ops, (Case){1, sizes[i], 0, true, false, false, true, 3});
        }
        check_case(t, ops, (Case){3, 7, 1, false, true, false, true, 0});  // odd: norm only
    }
}

TEST_MAIN({"heads_match_the_reference_for_all_switches",
           heads_match_the_reference_for_all_switches},
          {"heads_match_the_reference_at_all_sizes", heads_match_the_reference_at_all_sizes})
