// test_ops_norm.c - add_norm forward and backward of every instruction set against the references.
#include <math.h>
#include <string.h>

#include "test/arrays.h"
#include "test/ref_ops.h"

typedef struct Case {
    NormArgs a;
    bool affine, add, in_place;
} Case;

// The inputs of one case and the references' results.
typedef struct Norm {
    Case c;
    size_t all, C;
    float *residual, *inp, *weight, *bias, *dout, *dabove;
    double *out, *sum, *mean, *rstd, *dx, *dweight, *dbias;
} Norm;

static Norm norm_make(Case c) {
    size_t N = c.a.N, C = (size_t)c.a.C, all = N * C;
    Norm n = {.c = c,
              .all = all,
              .C = C,
              .residual = floats_noise(all, 1, 2),
              .inp = floats_noise(all, 2, 1),
              .weight = floats_noise(C, 3, 2),
              .bias = floats_noise(C, 4, 1),
              .dout = floats_noise(all, 5, 1),
              .dabove = floats_noise(all, 6, 1),
              .out = doubles_new(all),
              .mean = doubles_new(N),
              .rstd = doubles_new(N),
              .dweight = doubles_new(C),
              .dbias = doubles_new(C)};
    for (size_t i = 0; i < all; i++)
        n.residual[i] += 3;  // a mean that is not small
    double *residual = doubles_of(n.residual, all), *inp = doubles_of(n.inp, all);
    double *weight = doubles_of(n.weight, C), *bias = doubles_of(n.bias, C);
    double *dout = doubles_of(n.dout, all);
    n.sum = doubles_of(n.residual, all);
    n.dx = doubles_of(n.dabove, all);
    for (size_t c0 = 0; c0 < C; c0++)
        n.dweight[c0] = n.dbias[c0] = 1;  // gradients of weights accumulate
    ref_add_norm_forward(n.out, n.sum, n.mean, n.rstd, residual, c.add ? inp : NULL,
                         c.affine ? weight : NULL, c.affine ? bias : NULL, &c.a);
    ref_add_norm_backward(n.dx, n.dweight, n.dbias, dout, n.sum, c.affine ? weight : NULL, &c.a);
    double *scratch[] = {residual, inp, weight, bias, dout};
    for (int i = 0; i < 5; i++)
        mem_free(scratch[i]);
    return n;
}

static void norm_free(TestCtx *t, Norm *n) {
    float *floats[] = {n->residual, n->inp, n->weight, n->bias, n->dout, n->dabove};
    double *doubles[] = {n->out, n->sum, n->mean, n->rstd, n->dx, n->dweight, n->dbias};
    for (int i = 0; i < 6; i++)
        floats_free(t, floats[i]);
    for (int i = 0; i < 7; i++)
        mem_free(doubles[i]);
}

// What the op gives: out, sum, mean, rstd, dx, dweight, dbias behind each other.
typedef struct Result {
    float *out, *sum, *mean, *rstd, *dx, *dweight, *dbias;
} Result;

static Result run(const Ops *ops, const Norm *n, int threads) {
    size_t N = n->c.a.N;
    const NormArgs *a = &n->c.a;
    Result r = {floats_new(n->all), floats_new(n->all), floats_new(N),   floats_new(N),
                floats_new(n->all), floats_new(n->C),   floats_new(n->C)};
    const float *weight = n->c.affine ? n->weight : NULL, *bias = n->c.affine ? n->bias : NULL;
    float *from = n->c.in_place ? r.sum : n->residual;
    memcpy(r.sum, n->residual, n->all * sizeof(float));
    memcpy(r.dx, n->dabove, n->all * sizeof(float));
    for (size_t c = 0; c < n->C; c++)
        r.dweight[c] = r.dbias[c] = 1;
    set_threads(threads);
    ops->add_norm_forward(fx(r.out), n->c.add ? fx(r.sum) : NULL,
                          a->kind == NORM_LAYER ? r.mean : NULL, r.rstd, fx(from),
                          n->c.add ? fx(n->inp) : NULL, weight, bias, a);
    ops->add_norm_backward(fx(r.dx), n->c.affine ? r.dweight : NULL, n->c.affine ? r.dbias : NULL,
                           fx(n->dout), fx(r.sum), weight, r.mean, r.rstd, a);
    set_threads(0);
    return r;
}

static void result_free(TestCtx *t, Result *r) {
    float *floats[] = {r->out, r->sum, r->mean, r->rstd, r->dx, r->dweight, r->dbias};
    for (int i = 0; i < 7; i++)
        floats_free(t, floats[i]);
}

static void check_case(TestCtx *t, const Ops *ops, Case c) {
    Norm n = norm_make(c);
    size_t N = c.a.N;
    double tol = sum_tol(n.C), tol_rows = sum_tol(N);
    Result r = run(ops, &n, 2), one = run(ops, &n, 1), three = run(ops, &n, 3);
    int shape[] = {(int)N, c.a.C, 0};
    CHECK_CLOSE_F64(t, r.out, n.out, .what = "out", .n = n.all, .shape = shape, .rel_tol = tol);
    CHECK_CLOSE_F64(t, r.sum, n.sum, .what = "residual_out", .n = n.all, .shape = shape,
                    .rel_tol = 0x1p-24);
    CHECK_CLOSE_F64(t, r.rstd, n.rstd, .what = "rstd", .n = N, .rel_tol = tol);
    if (c.a.kind == NORM_LAYER)
        CHECK_CLOSE_F64(t, r.mean, n.mean, .what = "mean", .n = N, .rel_tol = tol);
    // The gradient through a norm of one element vanishes; what is left are roundings of its terms.
    CHECK_CLOSE_F64(t, r.dx, n.dx, .what = "dresidual", .n = n.all, .shape = shape,
                    .rel_tol = 2 * tol, .abs_tol = c.a.C == 1 ? 1e-5 : 0);
    if (c.affine) {
        CHECK_CLOSE_F64(t, r.dweight, n.dweight, .what = "dweight", .n = n.C,
                        .rel_tol = tol + tol_rows);
        CHECK_CLOSE_F64(t, r.dbias, n.dbias, .what = "dbias", .n = n.C, .rel_tol = tol_rows);
    }
    float *got[] = {r.out, r.sum, r.rstd, r.dx, r.dweight, r.dbias};
    float *got_one[] = {one.out, one.sum, one.rstd, one.dx, one.dweight, one.dbias};
    float *got_three[] = {three.out, three.sum, three.rstd, three.dx, three.dweight, three.dbias};
    size_t size[] = {n.all, n.all, N, n.all, n.C, n.C};
    for (int i = 0; i < 6; i++) {
        CHECK_SAME_BITS(t, got[i], got_one[i], size[i] * sizeof(float));
        CHECK_SAME_BITS(t, got[i], got_three[i], size[i] * sizeof(float));
    }
    result_free(t, &r);
    result_free(t, &one);
    result_free(t, &three);
    norm_free(t, &n);
}

static void norms_match_the_reference_at_all_widths(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (const int *C = TEST_WIDTHS; *C; C++) {
            check_case(t, ops, (Case){{NORM_RMS, 37, *C, 1e-6f}, false, true, true});
            check_case(t, ops, (Case){{NORM_RMS, 5, *C, 1e-6f}, true, false, false});
            check_case(t, ops, (Case){{NORM_LAYER, 37, *C, 1e-5f}, true, true, false});
        }
    }
}

static void gradients_of_weights_sum_many_rows(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        check_case(t, ops, (Case){{NORM_LAYER, 1, 72, 1e-5f}, true, true, true});
        check_case(t, ops, (Case){{NORM_LAYER, 3001, 24, 1e-5f}, true, false, false});
        check_case(t, ops, (Case){{NORM_RMS, 1025, 72, 1e-5f}, true, true, true});
    }
}

static void a_nan_reaches_its_row_and_no_other(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        float *x = floats_noise(2 * 72, 1, 1), *y = floats_new(2 * 72), rstd[2];
        x[71] = NAN;
        ops->add_norm_forward(fx(y), NULL, NULL, rstd, fx(x), NULL, NULL, NULL,
                              &(NormArgs){NORM_RMS, 2, 72, 0});
        CHECK(t, isnan(rstd[0]) && isnan(y[0]) && isnan(y[71]));
        CHECK(t, isfinite(rstd[1]) && isfinite(y[72]) && isfinite(y[143]));
        floats_free(t, x);
        floats_free(t, y);
    }
}

// A mean of 1000 and a spread of 1: a variance as mean(x^2) - mean(x)^2 would have lost it.
static void layer_norm_survives_a_large_mean(TestCtx *t) {
    enum { C = 2304 };
    const Ops *ops;
    FOR_EACH_SET(ops) {
        float *x = floats_noise(C, 1, 1), *y = floats_new(C), mean, rstd;
        for (int i = 0; i < C; i++)
            x[i] += 1000;
        double *d = doubles_of(x, C), *expected = doubles_new(C), r;
        NormArgs a = {NORM_LAYER, 1, C, 0};
        ref_add_norm_forward(expected, NULL, NULL, &r, d, NULL, NULL, NULL, &a);
        ops->add_norm_forward(fx(y), NULL, &mean, &rstd, fx(x), NULL, NULL, NULL, &a);
        CHECK_CLOSE_F64(t, &rstd, &r, .what = "rstd", .n = 1, .rel_tol = 1e-6);
        // the mean itself rounds to 3e-5
        CHECK_CLOSE_F64(t, y, expected, .what = "out", .n = C, .abs_tol = 2e-4);
        floats_free(t, x);
        floats_free(t, y);
        mem_free(d);
        mem_free(expected);
    }
}

TEST_MAIN({"norms_match_the_reference_at_all_widths", norms_match_the_reference_at_all_widths},
          {"gradients_of_weights_sum_many_rows", gradients_of_weights_sum_many_rows},
          {"a_nan_reaches_its_row_and_no_other", a_nan_reaches_its_row_and_no_other},
          {"layer_norm_survives_a_large_mean", layer_norm_survives_a_large_mean})
