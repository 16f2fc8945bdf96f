// lowrank.c - low-rank keys and values of whole sequences: x_h = S + Z_h B_h^T, then position and
// norm. Products of all heads, then the ops of rope.c in place.
#include "kernels/cpu/lowrank.h"

#include "gpt/util.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops_cpu.h"

static RopeArgs rope_args(const LowRankArgs *a) {
    return (RopeArgs){.B = a->B,
                      .T = a->T,
                      .NH = a->NH,
                      .HS = a->HS,
                      .ld_inp = a->ld_out,
                      .ld_out = a->ld_out,
                      .rope = a->rope,
                      .pos = a->pos,
                      .norm = a->norm,
                      .eps = a->eps};
}

void lowrank_forward_cpu(floatX *out, float *rstd, const floatX *s, const floatX *z,
                         const floatX *b, const LowRankArgs *a) {
    size_t rows = (size_t)a->B * (size_t)a->T, NH = (size_t)a->NH, HS = (size_t)a->HS;
    size_t R = (size_t)a->R;
    if (s) {
#pragma omp parallel for schedule(static)
        for (size_t n = 0; n < rows; n++) {
            for (size_t h = 0; h < NH; h++)
                memcpy((float *)out + n * a->ld_out + h * HS, (const float *)s + n * a->ld_s,
                       HS * sizeof(float));
        }
    }
    GemmArgs g = {.M = (int)rows,
                  .N = a->HS,
                  .K = a->R,
                  .a = (const float *)z,
                  .a_row = a->ld_z,
                  .a_col = 1,
                  .b = (const float *)b,
                  .b_row = 1,
                  .b_col = R,
                  .c = (float *)out,
                  .ldc = a->ld_out,
                  .alpha = 1,
                  .accumulate = s};
    gemm_batched(&g, a->NH, R, HS * R, HS);
    RopeArgs r = rope_args(a);
    if (a->rope || a->norm) qk_norm_rope_forward_cpu(out, rstd, out, &r);
}

void lowrank_backward_cpu(floatX *ds, floatX *dz, float *db, floatX *dout, const floatX *y,
                          const float *rstd, const floatX *z, const floatX *b,
                          const LowRankArgs *a) {
    size_t rows = (size_t)a->B * (size_t)a->T, NH = (size_t)a->NH, HS = (size_t)a->HS;
    size_t R = (size_t)a->R;
    RopeArgs r = rope_args(a);
    if (a->rope || a->norm) qk_norm_rope_backward_cpu(dout, dout, y, a->ld_out, rstd, &r);
    if (ds) {
#pragma omp parallel for schedule(static)
        for (size_t n = 0; n < rows; n++) {
            const float *x = (const float *)dout + n * a->ld_out;
            float *sum = (float *)ds + n * a->ld_s;
            memcpy(sum, x, HS * sizeof(float));
            for (size_t h = 1; h < NH; h++) {
                for (size_t i = 0; i < HS; i++)
                    sum[i] += x[h * HS + i];
            }
        }
    }
    GemmArgs to_z = {.M = (int)rows,
                     .N = a->R,
                     .K = a->HS,
                     .a = (const float *)dout,
                     .a_row = a->ld_out,
                     .a_col = 1,
                     .b = (const float *)b,
                     .b_row = R,
                     .b_col = 1,
                     .c = (float *)dz,
                     .ldc = a->ld_z,
                     .alpha = 1};
    gemm_batched(&to_z, a->NH, HS, HS * R, R);
    GemmArgs to_b = {.M = a->HS,
                     .N = a->R,
                     .K = (int)rows,
                     .a = (const float *)dout,
                     .a_row = 1,
                     .a_col = a->ld_out,
                     .b = (const float *)z,
                     .b_row = a->ld_z,
                     .b_col = 1,
                     .c = db,
                     .ldc = R,
                     .alpha = 1,
                     .accumulate = true};
    gemm_batched(&to_b, a->NH, HS, R, HS * R);
}
