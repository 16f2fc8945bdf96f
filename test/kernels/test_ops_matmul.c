// test_ops_matmul.c - the products of the op table against the reference: what the ops add to the
// kernels under them, that is shapes, strides, prepared and unprepared weights, biases.
#include <math.h>
#include <string.h>

#include "test/arrays.h"
#include "test/ref_ops.h"

typedef struct Case {
    int N, OC, IC, n_bias;
    ElemType compute;
    bool prepared;
} Case;

static Weight weight_make(const Ops *ops, const Case *c, float *data) {
    Weight w = {.data = fx(data), .OC = c->OC, .IC = c->IC, .compute = c->compute};
    size_t bytes = ops->weight_bytes(c->OC, c->IC, c->compute);
    if (c->prepared) {
        w.forward = ops->alloc(bytes);
        w.backward = ops->alloc(bytes);
        ops->weight_prepare(&w);
    }
    return w;
}

// In bf16 the reference reads rounded operands, products are exact and only the sums round.
static double *operand(const float *x, size_t n, ElemType compute) {
    double *d = doubles_of(x, n);
    for (size_t i = 0; compute == TYPE_BF16 && i < n; i++)
        d[i] = (double)bf16_to_f32(bf16_from_f32(x[i]));
    return d;
}

typedef struct Product {
    size_t N, OC, IC, ld_in, ld_out;
    float *inp, *data, *bias, *dout;
    double *inp_d, *data_d, *dout_d;
} Product;

static Product product_make(const Case *c) {
    Product p = {(size_t)c->N,
                 (size_t)c->OC,
                 (size_t)c->IC,
                 (size_t)c->IC + 5,
                 (size_t)c->OC + 3,
                 0,
                 0,
                 0,
                 0,
                 0,
                 0,
                 0};
    p.inp = floats_noise(p.N * p.ld_in, 1, 1);
    p.data = floats_noise(p.OC * p.IC, 2, 1);
    p.bias = floats_noise((size_t)c->n_bias, 3, 1);
    p.dout = floats_noise(p.N * p.ld_out, 4, 1);
    p.inp_d = operand(p.inp, p.N * p.ld_in, c->compute);
    p.data_d = operand(p.data, p.OC * p.IC, c->compute);
    p.dout_d = operand(p.dout, p.N * p.ld_out, c->compute);
    return p;
}
static void product_free(TestCtx *t, Product *p) {
    float *floats[] = {p->inp, p->data, p->bias, p->dout};
    double *doubles[] = {p->inp_d, p->data_d, p->dout_d};
    for (int i = 0; i < 4; i++)
        floats_free(t, floats[i]);
    for (int i = 0; i < 3; i++)
        mem_free(doubles[i]);
}

// Of a sum of k products of values up to 1, beside 2^-22 of the largest result.
static double tolerance(size_t k) {
    return sqrt((double)k) * 0x1p-24 * 8;
}

static void check_forward(TestCtx *t, const Ops *ops, const Case *c, const Weight *w,
                          const Product *p) {
    float *out = floats_noise(p->N * p->ld_out, 5, 1),
          *before = floats_noise(p->N * p->ld_out, 5, 1);
    double *ref = doubles_of(out, p->N * p->ld_out);
    GemmOp g = {.M = c->N,
                .N = c->OC,
                .K = c->IC,
                .batch = 1,
                .tb = true,
                .lda = p->ld_in,
                .ldb = p->IC,
                .ldc = p->ld_out,
                .alpha = 1};
    ref_gemm(ref, p->inp_d, p->data_d, &g);
    for (size_t n = 0; n < p->N; n++) {
        for (size_t i = 0; i < (size_t)c->n_bias; i++)
            ref[n * p->ld_out + i] += (double)p->bias[i];
    }
    ops->matmul(fx(out), p->ld_out, fx(p->inp), p->ld_in, w, c->n_bias ? p->bias : NULL, c->n_bias,
                p->N);
    CHECK_CLOSE_F64(t, out, ref, .what = "out", .n = p->N * p->ld_out, .rel_tol = 0x1p-22,
                    .abs_tol = tolerance(p->IC));
    for (size_t n = 0; n < p->N; n++)
        CHECK_SAME_BITS(t, out + n * p->ld_out + p->OC, before + n * p->ld_out + p->OC,
                        3 * sizeof(float));
    floats_free(t, out);
    floats_free(t, before);
    mem_free(ref);
}

static void check_backward(TestCtx *t, const Ops *ops, const Case *c, const Weight *w,
                           const Product *p) {
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        float *dinp = floats_noise(p->N * p->ld_in, 6, 1);
        double *ref = doubles_of(dinp, p->N * p->ld_in);
        GemmOp g = {.M = c->N,
                    .N = c->IC,
                    .K = c->OC,
                    .batch = 1,
                    .lda = p->ld_out,
                    .ldb = p->IC,
                    .ldc = p->ld_in,
                    .alpha = 1,
                    .beta = (float)accumulate};
        ref_gemm(ref, p->dout_d, p->data_d, &g);
        ops->matmul_dx(fx(dinp), p->ld_in, fx(p->dout), p->ld_out, w, p->N, accumulate);
        CHECK_CLOSE_F64(t, dinp, ref, .what = "dinp", .n = p->N * p->ld_in, .rel_tol = 0x1p-22,
                        .abs_tol = tolerance(p->OC));
        floats_free(t, dinp);
        mem_free(ref);
    }
    float *dw = floats_noise(p->OC * p->IC, 7, 1), *db = floats_noise(p->OC, 8, 1);
    double *dw_ref = doubles_of(dw, p->OC * p->IC), *db_ref = doubles_of(db, p->OC);
    GemmOp g = {.M = c->OC,
                .N = c->IC,
                .K = c->N,
                .batch = 1,
                .ta = true,
                .lda = p->ld_out,
                .ldb = p->ld_in,
                .ldc = p->IC,
                .alpha = 1,
                .beta = 1};
    ref_gemm(dw_ref, p->dout_d, p->inp_d, &g);
    for (size_t n = 0; n < p->N; n++) {
        for (size_t i = 0; i < p->OC; i++)
            db_ref[i] += (double)p->dout[n * p->ld_out + i];
    }
    ops->matmul_dw(dw, fx(p->dout), p->ld_out, fx(p->inp), p->ld_in, w, p->N);
    ops->bias_dw(db, fx(p->dout), p->ld_out, p->N, c->OC);
    CHECK_CLOSE_F64(t, dw, dw_ref, .what = "dw", .n = p->OC * p->IC, .rel_tol = 0x1p-22,
                    .abs_tol = tolerance(p->N));
    CHECK_CLOSE_F64(t, db, db_ref, .what = "dbias", .n = p->OC, .rel_tol = 0x1p-22,
                    .abs_tol = tolerance(p->N));
    floats_free(t, dw);
    floats_free(t, db);
    mem_free(dw_ref);
    mem_free(db_ref);
}

static void check_case(TestCtx *t, const Ops *ops, Case c) {
    Product p = product_make(&c);
    Weight w = weight_make(ops, &c, p.data);
    check_forward(t, ops, &c, &w, &p);
    check_backward(t, ops, &c, &w, &p);
    ops->free(w.forward);
    ops->free(w.backward);
    product_free(t, &p);
}

static void products_match_the_reference(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (int bits = 0; bits < 4; bits++) {
            ElemType compute = bits & 1 ? TYPE_BF16 : TYPE_F32;
            bool prepared = bits & 2;
            check_case(t, ops, (Case){1, 1, 1, 1, compute, prepared});
            check_case(t, ops, (Case){33, 72, 64, 40, compute, prepared});
            check_case(t, ops, (Case){7, 320, 72, 0, compute, prepared});
            check_case(t, ops, (Case){65, 9, 1000, 9, compute, prepared});
            check_case(t, ops, (Case){130, 33, 17, 33, compute, prepared});
        }
    }
}

// A weight changes at each step: its copies must follow, and only weight_prepare makes them.
static void prepare_follows_the_weight(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        const Case c = {4, 24, 40, 0, TYPE_F32, true};
        Product p = product_make(&c);
        Weight w = weight_make(ops, &c, p.data);
        for (size_t i = 0; i < p.OC * p.IC; i++) {
            p.data[i] *= 2;
            p.data_d[i] *= 2;
        }
        ops->weight_prepare(&w);
        check_forward(t, ops, &c, &w, &p);
        check_backward(t, ops, &c, &w, &p);
        ops->free(w.backward);
        w.backward = NULL;  // inference
        ops->weight_prepare(&w);
        check_forward(t, ops, &c, &w, &p);
        ops->free(w.forward);
        product_free(t, &p);
    }
}

static void bias_gradients_match_and_do_not_depend_on_threads(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (const int *C = TEST_WIDTHS; *C; C++) {
            size_t N = 333, ld = (size_t)*C + 1, n = (size_t)*C;
            float *dout = floats_noise(N * ld, 1, 1), *db[3];
            double *ref = doubles_new(n);
            for (size_t i = 0; i < N * n; i++)
                ref[i % n] += (double)dout[i / n * ld + i % n];
            for (int k = 0; k < 3; k++) {
                db[k] = floats_new(n);
                memset(db[k], 0, n * sizeof(float));
                set_threads(k + 1);
                ops->bias_dw(db[k], fx(dout), ld, N, *C);
            }
            set_threads(0);
            CHECK_CLOSE_F64(t, db[0], ref, .what = "dbias", .n = n, .rel_tol = 0x1p-22,
                            .abs_tol = tolerance(N));
            CHECK_SAME_BITS(t, db[0], db[1], n * sizeof(float));
            CHECK_SAME_BITS(t, db[0], db[2], n * sizeof(float));
            for (int k = 0; k < 3; k++)
                floats_free(t, db[k]);
            floats_free(t, dout);
            mem_free(ref);
        }
    }
}

static void check_gemm(TestCtx *t, const Ops *ops, GemmOp g) {
    size_t rows_a = (size_t)(g.ta ? g.K : g.M), cols_a = (size_t)(g.ta ? g.M : g.K);
    size_t rows_b = (size_t)(g.tb ? g.N : g.K), cols_b = (size_t)(g.tb ? g.K : g.N);
    g.lda = cols_a + 2, g.ldb = cols_b + 1, g.ldc = (size_t)g.N + 3;
    g.stride_a = rows_a * g.lda + 4, g.stride_b = g.batch > 2 ? 0 : rows_b * g.ldb;
    g.stride_c = (size_t)g.M * g.ldc + 7;
    size_t na = (size_t)g.batch * g.stride_a, nc = (size_t)g.batch * g.stride_c;
    size_t nb = rows_b * g.ldb * (g.stride_b ? (size_t)g.batch : 1);
    float *a = floats_noise(na, 1, 1), *b = floats_noise(nb, 2, 1), *c = floats_noise(nc, 3, 1);
    double *ad = operand(a, na, g.compute), *bd = operand(b, nb, g.compute);
    double *cd = doubles_of(c, nc);
    ref_gemm(cd, ad, bd, &g);
    ops->gemm(c, a, b, &g);
    CHECK_CLOSE_F64(t, c, cd, .what = "c", .n = nc, .rel_tol = 0x1p-22,
                    .abs_tol = tolerance((size_t)g.K));
    floats_free(t, a);
    floats_free(t, b);
    floats_free(t, c);
    mem_free(ad);
    mem_free(bd);
    mem_free(cd);
}

static void gemm_matches_the_reference_for_all_switches(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (int bits = 0; bits < 16; bits++) {
            GemmOp g = {.ta = bits & 1,
                        .tb = bits & 2,
                        .beta = bits & 4 ? 1 : 0,
                        .compute = bits & 8 ? TYPE_BF16 : TYPE_F32,
                        .c_type = TYPE_F32,
                        .alpha = 0.5f};
            static const int sizes[][4] = {{1, 1, 1, 1}, {13, 7, 30, 3}, {64, 72, 40, 2}};
            for (int i = 0; i < 3; i++) {
                g.M = sizes[i][0], g.N = sizes[i][1], g.K = sizes[i][2], g.batch = sizes[i][3];
                check_gemm(t, ops, g);
            }
        }
    }
}

// X X^T or X^T X, alone or added to a symmetric C, whole and by its lower triangle.
static void check_symmetric(TestCtx *t, const Ops *ops, GemmOp g) {
    size_t n = (size_t)g.M, k = (size_t)g.K, rows = g.ta ? k : n, ld = g.ta ? n : k;
    g.N = g.M, g.tb = !g.ta, g.alpha = 0.5f;
    g.a_type = g.b_type = g.c_type = TYPE_F32;
    g.lda = g.ldb = ld + 1, g.ldc = n + 3;
    g.stride_a = g.stride_b = rows * g.lda, g.stride_c = n * g.ldc + 7;
    size_t na = (size_t)g.batch * g.stride_a, nc = (size_t)g.batch * g.stride_c;
    float *x = floats_noise(na, 1, 1), *whole = floats_noise(nc, 2, 1);
    for (size_t m = 0; m < (size_t)g.batch; m++) {
        float *c = whole + m * g.stride_c;
        for (size_t i = 0; i < n; i++) {
            for (size_t j = 0; j < i; j++)
                c[j * g.ldc + i] = c[i * g.ldc + j];
        }
    }
    float *half = floats_new(nc);
    memcpy(half, whole, nc * sizeof(float));
    ops->gemm(whole, x, x, &g);
    g.symmetric = true;
    ops->gemm(half, x, x, &g);
    CHECK_SAME_BITS(t, whole, half, nc * sizeof(float));
    floats_free(t, x), floats_free(t, whole), floats_free(t, half);
}

static void symmetric_products_have_the_bits_of_whole_ones(TestCtx *t) {
    static const int sizes[][3] = {{1, 1, 1},   {5, 9, 3},    {33, 70, 1},  {64, 64, 2},
                                   {130, 7, 5}, {300, 40, 1}, {515, 90, 1}, {257, 1, 2}};
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (int bits = 0; bits < 8; bits++) {
            GemmOp g = {.ta = bits & 1,
                        .beta = bits & 2 ? 1 : 0,
                        .compute = bits & 4 ? TYPE_BF16 : TYPE_F32};
            for (int i = 0; i < 8; i++) {
                set_threads(1 + (i + bits) % 3);
                g.M = sizes[i][0], g.K = sizes[i][1], g.batch = sizes[i][2];
                check_symmetric(t, ops, g);
            }
        }
        // More rows, columns and words than are packed at a time.
        GemmOp big = {.M = 550, .K = 4200, .batch = 1, .beta = 1};
        check_symmetric(t, ops, big);
    }
    set_threads(0);
}

TEST_MAIN({"products_match_the_reference", products_match_the_reference},
          {"prepare_follows_the_weight", prepare_follows_the_weight},
          {"bias_gradients_match_and_do_not_depend_on_threads",
           bias_gradients_match_and_do_not_depend_on_threads},
          {"gemm_matches_the_reference_for_all_switches",
           gemm_matches_the_reference_for_all_switches},
          {"symmetric_products_have_the_bits_of_whole_ones",
           symmetric_products_have_the_bits_of_whole_ones})
