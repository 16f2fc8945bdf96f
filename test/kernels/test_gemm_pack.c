// test_gemm_pack.c - how packing rounds operands to bf16, seen through products with 1.
#include <math.h>
#include <string.h>

#include "test/kernels/gemm_isas.h"

// Ties go to even, the largest float overflows to infinity.
static void rounding(TestCtx *t, const Isa *isa) {
    static const float in[] = {1 + 0x1p-8f, 1 + 0x3p-8f, -1 - 0x1.8p-8f, 0x1.fffffep127f, 3.0f};
    static const float out[] = {1, 1 + 0x1p-6f, -1 - 0x1p-7f, INFINITY, 3};
    for (int i = 0; i < 5; i++) {
        for (int side = 0; side < 2; side++) {
            float one = 1, c = 0;
            GemmArgs g = {
                .M = 1, .N = 1, .K = 1, .a = side ? &one : &in[i], .a_row = 1, .a_col = 1};
            g.b = side ? &in[i] : &one;
            g.b_row = g.b_col = g.ldc = 1;
            g.c = &c;
            g.alpha = 1;
            g.type = GEMM_BF16;
            isa->gemm(&g);
            CHECK_MSG(t, c == out[i], "%a rounds to %a, expected %a", (double)in[i], (double)c,
                      (double)out[i]);
        }
    }
}

static void nan_words(TestCtx *t, const Isa *isa) {
    static const uint32_t nan[] = {0x7f800001, 0x7fffffff, 0xff800001, 0xffffffff};
    enum { N = 40 };
    float row[N], one = 1, c[N];
    for (int i = 0; i < N; i++)
        memcpy(&row[i], &nan[i % 4], 4);
    isa->gemm(&(GemmArgs){.M = 1,
                          .N = N,
                          .K = 1,
                          .a = &one,
                          .a_row = 1,
                          .a_col = 1,
                          .b = row,
                          .b_row = N,
                          .b_col = 1,
                          .c = c,
                          .ldc = N,
                          .alpha = 1,
                          .type = GEMM_BF16});
    for (int i = 0; i < N; i++)
        CHECK_MSG(t, isnan(c[i]), "%08x became %g", nan[i % 4], (double)c[i]);
}

static void bf16_keeps_every_nan(TestCtx *t) {
    each_isa(t, nan_words);
}

static void bf16_rounds_to_nearest_even(TestCtx *t) {
    each_isa(t, rounding);
}

TEST_MAIN({"bf16_keeps_every_nan", bf16_keeps_every_nan},
          {"bf16_rounds_to_nearest_even", bf16_rounds_to_nearest_even})
