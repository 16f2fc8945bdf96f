// matmul.c - the matrix products of the op table, on gemm.h.
// A weight without prepared copies is read in place, packed anew by each product.
#include <assert.h>
#include <limits.h>

#include "gpt/util.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/reduce.h"

// Rows that one product takes; gemm counts in int.
enum { ROWS_MAX = 1 << 30 };

static GemmType gemm_type(ElemType compute) {
    return compute == TYPE_BF16 ? GEMM_BF16 : GEMM_F32;
}

size_t weight_bytes_cpu(int OC, int IC, ElemType compute) {
    size_t forward = gemm_panel_bytes(OC, IC, gemm_type(compute));
    size_t backward = gemm_panel_bytes(IC, OC, gemm_type(compute));
    return forward > backward ? forward : backward;
}

void weight_prepare_cpu(Weight *w) {
    const float *data = (const float *)w->data;
    size_t IC = (size_t)w->IC;
    GemmType type = gemm_type(w->compute);
    if (w->forward) gemm_pack(w->forward, data, 1, IC, w->IC, w->OC, type);
    if (w->backward) gemm_pack(w->backward, data, IC, 1, w->OC, w->IC, type);
}

void matmul_cpu(floatX *out, size_t ld_out, const floatX *inp, size_t ld_inp, const Weight *w,
                const float *bias, int n_bias, size_t N) {
    for (size_t n = 0; n < N; n += ROWS_MAX) {
        gemm(&(GemmArgs){.M = (int)min_size(ROWS_MAX, N - n),
                         .N = w->OC,
                         .K = w->IC,
                         .a = (const float *)inp + n * ld_inp,
                         .a_row = ld_inp,
                         .a_col = 1,
                         .b = (const float *)w->data,
                         .b_row = 1,
                         .b_col = (size_t)w->IC,
                         .panels = w->forward,
                         .c = (float *)out + n * ld_out,
                         .ldc = ld_out,
                         .alpha = 1,
                         .bias = bias,
                         .n_bias = n_bias,
                         .type = gemm_type(w->compute)});
    }
}

void matmul_dx_cpu(floatX *dinp, size_t ld_dinp, const floatX *dout, size_t ld_dout,
                   const Weight *w, size_t N, bool accumulate) {
    for (size_t n = 0; n < N; n += ROWS_MAX) {
        gemm(&(GemmArgs){.M = (int)min_size(ROWS_MAX, N - n),
                         .N = w->IC,
                         .K = w->OC,
                         .a = (const float *)dout + n * ld_dout,
                         .a_row = ld_dout,
                         .a_col = 1,
                         .b = (const float *)w->data,
                         .b_row = (size_t)w->IC,
                         .b_col = 1,
                         .panels = w->backward,
                         .c = (float *)dinp + n * ld_dinp,
                         .ldc = ld_dinp,
                         .alpha = 1,
                         .accumulate = accumulate,
                         .type = gemm_type(w->compute)});
    }
}

void matmul_dw_cpu(float *dw, const floatX *dout, size_t ld_dout, const floatX *inp, size_t ld_inp,
                   const Weight *w, size_t N) {
    for (size_t n = 0; n < N; n += ROWS_MAX) {
        gemm(&(GemmArgs){.M = w->OC,
                         .N = w->IC,
                         .K = (int)min_size(ROWS_MAX, N - n),
                         .a = (const float *)dout + n * ld_dout,
                         .a_row = 1,
                         .a_col = ld_dout,
                         .b = (const float *)inp + n * ld_inp,
                         .b_row = ld_inp,
                         .b_col = 1,
                         .c = dw,
                         .ldc = (size_t)w->IC,
                         .alpha = 1,
                         .accumulate = true,
                         .type = gemm_type(w->compute)});
    }
}

void bias_dw_cpu(float *dbias, const floatX *dout, size_t ld_dout, size_t N, int OC) {
    size_t C = (size_t)OC, blocks = row_blocks(N);
    float *part = mem_alloc(blocks * C, sizeof(float));  // (blocks, OC)
#pragma omp parallel for schedule(static) if (N * C > SERIAL_ELEMENTS)
    for (size_t i = 0; i < blocks; i++) {
        size_t first = block_start(N, blocks, i), n = block_start(N, blocks, i + 1) - first;
        rows_add(part + i * C, (const float *)dout + first * ld_dout, ld_dout, NULL, n, 0, C);
    }
    columns_add(dbias, part, C, blocks, C);
    mem_free(part);
}

static bool is_f32(ElemType type) {
    return type == TYPE_FX || type == TYPE_F32;
}

void gemm_cpu(void *c, const void *a, const void *b, const GemmOp *g) {
    assert(is_f32(g->a_type) && is_f32(g->b_type) && is_f32(g->c_type));
    assert(g->beta == 0 || g->beta == 1);
    (void)is_f32;
    GemmArgs args = {.M = g->M,
                     .N = g->N,
                     .K = g->K,
                     .a = a,
                     .a_row = g->ta ? 1 : g->lda,
                     .a_col = g->ta ? g->lda : 1,
                     .b = b,
                     .b_row = g->tb ? 1 : g->ldb,
                     .b_col = g->tb ? g->ldb : 1,
                     .c = c,
                     .ldc = g->ldc,
                     .alpha = g->alpha,
                     .accumulate = g->beta != 0,
                     .symmetric = g->symmetric,
                     .type = gemm_type(g->compute)};
    gemm_batched(&args, g->batch, g->stride_a, g->stride_b, g->stride_c);
}
