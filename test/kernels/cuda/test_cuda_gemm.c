// test_cuda_gemm.c - matrix products of the CUDA tables against the CPU's: layouts, strides, types.
#include "test/kernels/cuda/twin.h"

// A sum of K products of values in [-1, 1), relative to the largest result.
static double product_tol(const Ops *g, ElemType type, size_t K) {
    return 2 * twin_tol(g, type, K);
}

static void check_matmul(TestCtx *t, const Ops *g, size_t N, int OC, int IC, size_t pad,
                         int n_bias) {
    const Ops *o = ops_cpu();
    size_t oc = (size_t)OC, ic = (size_t)IC, ld_inp = ic + pad, ld_out = oc + pad;
    Twin weight = twin_noise(g, TYPE_FX, oc * ic, 1, 1), bias = twin_noise(g, TYPE_F32, oc, 2, 1);
    Twin inp = twin_noise(g, TYPE_FX, N * ld_inp, 3, 1),
         out = twin_noise(g, TYPE_FX, N * ld_out, 4, 1);
    Twin dw = twin_noise(g, TYPE_F32, oc * ic, 5, 1);
    Weight w = {.data = cpu(weight), .OC = OC, .IC = IC, .compute = TYPE_F32};
    Weight gw = {.data = gpu(weight), .OC = OC, .IC = IC, .compute = TYPE_F32};
    const float *cb = n_bias ? bias.cpu : NULL, *gb = n_bias ? bias.gpu : NULL;
    o->matmul(cpu(out), ld_out, cpu(inp), ld_inp, &w, cb, n_bias, N);
    g->matmul(gpu(out), ld_out, gpu(inp), ld_inp, &gw, gb, n_bias, N);
    TWIN_CHECK(t, g, out, product_tol(g, TYPE_FX, ic) + (is_bf16(g) && n_bias ? 0x1p-8 : 0), 0);
    // out is the gradient now.
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        o->matmul_dx(cpu(inp), ld_inp, cpu(out), ld_out, &w, N, accumulate);
        g->matmul_dx(gpu(inp), ld_inp, gpu(out), ld_out, &gw, N, accumulate);
        TWIN_CHECK(t, g, inp, 2 * product_tol(g, TYPE_FX, oc), 0);
    }
    o->matmul_dw(dw.cpu, cpu(out), ld_out, cpu(inp), ld_inp, &w, N);
    g->matmul_dw(dw.gpu, gpu(out), ld_out, gpu(inp), ld_inp, &gw, N);
    TWIN_CHECK(t, g, dw, product_tol(g, TYPE_F32, N) + (is_bf16(g) ? 0x1p-7 : 0), 0);
    TWIN_FREE(t, g, &weight, &bias, &inp, &out, &dw);
}

static void products_with_weights_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        check_matmul(t, g, 1, 8, 8, 0, 0);
        check_matmul(t, g, 5, 64, 72, 8, 64);
        check_matmul(t, g, 33, 24, 320, 0, 10);
        check_matmul(t, g, 7, 13, 9, 3, 13);
    }
}

// A bias of no columns adds nothing, and so does none for some.
static void absent_biases_add_nothing(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        Twin weight = twin_noise(g, TYPE_FX, 64, 1, 1), inp = twin_noise(g, TYPE_FX, 16, 2, 1);
        Twin bias = twin_noise(g, TYPE_F32, 8, 3, 1), out = twin_new(g, TYPE_FX, 16);
        Weight w = {.data = cpu(weight), .OC = 8, .IC = 8, .compute = TYPE_F32};
        ops_cpu()->matmul(cpu(out), 8, cpu(inp), 8, &w, NULL, 0, 2);
        w.data = gpu(weight);
        for (int n_bias = 0; n_bias <= 8; n_bias += 8) {
            g->matmul(gpu(out), 8, gpu(inp), 8, &w, n_bias ? NULL : bias.gpu, n_bias, 2);
            TWIN_CHECK(t, g, out, product_tol(g, TYPE_FX, 8), 0);
        }
        TWIN_FREE(t, g, &weight, &inp, &bias, &out);
    }
}

static void check_gemm(TestCtx *t, const Ops *g, GemmOp op) {
    GemmOp c = op;
    c.a_type = c.b_type = c.c_type = TYPE_F32;
    size_t pad = 3, M = (size_t)op.M, N = (size_t)op.N, K = (size_t)op.K, n = (size_t)op.batch;
    op.lda = c.lda = (op.ta ? M : K) + pad, op.ldb = c.ldb = (op.tb ? K : N) + pad;
    op.ldc = c.ldc = N + pad;
    op.stride_a = c.stride_a = op.lda * (op.ta ? K : M) + 1;
    op.stride_b = c.stride_b = op.ldb * (op.tb ? N : K) + 1;
    op.stride_c = c.stride_c = op.ldc * M + 1;
    Twin a = twin_noise(g, op.a_type, n * op.stride_a, 1, 1);
    Twin b = twin_noise(g, op.b_type, n * op.stride_b, 2, 1);
    Twin out = twin_noise(g, op.c_type, n * op.stride_c, 3, 1);
    ops_cpu()->gemm(out.cpu, a.cpu, b.cpu, &c);
    g->gemm(out.gpu, a.gpu, b.gpu, &op);
    // Operands rounded to bf16 on one side in another way than on the other.
    double rounded = op.compute == TYPE_BF16 ? 0x1p-8 : 0;
    TWIN_CHECK(t, g, out, product_tol(g, op.c_type, K) + rounded, 0);
    TWIN_FREE(t, g, &a, &b, &out);
}

static void batches_transposes_and_types_match(TestCtx *t) {
    const Ops *g;
    static const ElemType types[][3] = {{TYPE_FX, TYPE_FX, TYPE_FX},
                                        {TYPE_FX, TYPE_FX, TYPE_F32},
                                        {TYPE_F32, TYPE_F32, TYPE_F32},
                                        {TYPE_FX, TYPE_F32, TYPE_F32},
                                        {TYPE_F32, TYPE_FX, TYPE_F32}};
    FOR_EACH_TABLE(g) {
        for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
            for (int k = 0; k < 4; k++) {
                GemmOp op = {.M = 9,
                             .N = 17,
                             .K = 33,
                             .batch = 3,
                             .ta = k & 1,
                             .tb = k >> 1,
                             .a_type = types[i][0],
                             .b_type = types[i][1],
                             .c_type = types[i][2],
                             .compute = TYPE_F32,
                             .alpha = k == 2 ? -0.5f : 1,
                             .beta = (float)(k % 2)};
                check_gemm(t, g, op);
                op.compute = TYPE_BF16;
                check_gemm(t, g, op);
            }
        }
    }
}

TEST_MAIN({"absent_biases_add_nothing", absent_biases_add_nothing},
          {"products_with_weights_match", products_with_weights_match},
          {"batches_transposes_and_types_match", batches_transposes_and_types_match})
