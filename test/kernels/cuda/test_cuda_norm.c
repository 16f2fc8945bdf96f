// test_cuda_norm.c - add_norm of the CUDA tables against the CPU's.
#include <math.h>

#include "test/kernels/cuda/twin.h"

typedef enum Sums { NONE, BOTH, WEIGHT, BIAS } Sums;  // gradients that are wanted

typedef struct Case {
    NormArgs a;
    bool affine, add, in_place;
    Sums sums;
} Case;

static void check_case(TestCtx *t, const Ops *g, Case c) {
    const Ops *o = ops_cpu();
    size_t N = c.a.N, C = (size_t)c.a.C, all = N * C;
    Twin residual = twin_noise(g, TYPE_FX, all, 1, 2), inp = twin_noise(g, TYPE_FX, all, 2, 1);
    Twin sum = c.in_place ? residual : twin_new(g, TYPE_FX, all), out = twin_new(g, TYPE_FX, all);
    Twin mean = twin_new(g, TYPE_F32, N), rstd = twin_new(g, TYPE_F32, N);
    Twin weight = c.affine ? twin_noise(g, TYPE_F32, C, 3, 2) : twin_null();
    Twin bias = c.affine ? twin_noise(g, TYPE_F32, C, 4, 1) : twin_null();
    Twin dout = twin_noise(g, TYPE_FX, all, 5, 1), dx = twin_noise(g, TYPE_FX, all, 6, 1);
    Twin dweight = c.sums && c.sums != BIAS ? twin_noise(g, TYPE_F32, C, 7, 1) : twin_null();
    Twin dbias = c.sums && c.sums != WEIGHT ? twin_noise(g, TYPE_F32, C, 8, 1) : twin_null();
    bool layer = c.a.kind == NORM_LAYER;

    // Without backward nothing is kept.
    if (!c.in_place) {
        g->add_norm_forward(gpu(out), c.add ? gpu(sum) : NULL, NULL, NULL, gpu(residual),
                            c.add ? gpu(inp) : NULL, weight.gpu, bias.gpu, &c.a);
    }
    o->add_norm_forward(cpu(out), c.add ? cpu(sum) : NULL, layer ? mean.cpu : NULL, rstd.cpu,
                        cpu(residual), c.add ? cpu(inp) : NULL, weight.cpu, bias.cpu, &c.a);
    g->add_norm_forward(gpu(out), c.add ? gpu(sum) : NULL, layer ? mean.gpu : NULL, rstd.gpu,
                        gpu(residual), c.add ? gpu(inp) : NULL, weight.gpu, bias.gpu, &c.a);
    // The row's sum is rounded before its statistics are taken: 2^-9 of each value.
    double slack = is_bf16(g) && c.add ? 0x1p-8 : 0;
    TWIN_CHECK(t, g, out, twin_tol(g, TYPE_FX, C) + 2 * slack, 0);
    if (c.add) TWIN_CHECK(t, g, sum, twin_tol(g, TYPE_FX, 1), 0);
    TWIN_CHECK(t, g, rstd, twin_tol(g, TYPE_F32, C) + slack, 0);
    if (layer) TWIN_CHECK(t, g, mean, twin_tol(g, TYPE_F32, C) + slack, slack);

    const Twin *x = c.add ? &sum : &residual;
    o->add_norm_backward(cpu(dx), dweight.cpu, dbias.cpu, cpu(dout), cpu(*x), weight.cpu, mean.cpu,
                         rstd.cpu, &c.a);
    g->add_norm_backward(gpu(dx), dweight.gpu, dbias.gpu, gpu(dout), gpu(*x), weight.gpu, mean.gpu,
                         rstd.gpu, &c.a);
    TWIN_CHECK(t, g, dx, twin_tol(g, TYPE_FX, C) + 2 * slack, 0);
    if (dweight.cpu) TWIN_CHECK(t, g, dweight, 2 * twin_tol(g, TYPE_F32, N) + slack, 0);
    if (dbias.cpu) TWIN_CHECK(t, g, dbias, 2 * twin_tol(g, TYPE_F32, N), 0);
    if (!c.in_place) twin_free(t, g, &sum);
    TWIN_FREE(t, g, &residual, &inp, &out, &mean, &rstd, &weight, &bias, &dout, &dx, &dweight,
              &dbias);
}

static const int widths[] = {1, 8, 64, 72, 320, 768};
enum { N_WIDTHS = sizeof widths / sizeof widths[0] };

static void norms_match_at_all_widths(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        for (int i = 0; i < N_WIDTHS; i++) {
            int C = widths[i];
            if (C > 1) check_case(t, g, (Case){{NORM_LAYER, 7, C, 1e-5f}, true, true, false, BOTH});
            check_case(t, g, (Case){{NORM_RMS, 5, C, 1e-6f}, false, true, true, NONE});
            check_case(t, g, (Case){{NORM_RMS, 3, C, 1e-6f}, true, false, false, BOTH});
        }
    }
}

static void long_and_odd_rows_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        check_case(t, g, (Case){{NORM_LAYER, 1, 2304, 1e-5f}, true, true, true, BOTH});
        check_case(t, g, (Case){{NORM_LAYER, 2, 333, 1e-5f}, true, true, false, BOTH});
        check_case(t, g, (Case){{NORM_RMS, 2, 8200, 1e-6f}, true, true, false, BOTH});
        check_case(t, g, (Case){{NORM_RMS, 1, 8195, 1e-6f}, false, true, false, BOTH});
        check_case(t, g, (Case){{NORM_LAYER, 2, 8200, 1e-5f}, true, false, false, NONE});
        check_case(t, g, (Case){{NORM_RMS, 1, 8193, 1e-6f}, true, true, false, NONE});
    }
}

static void unaligned_rows_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        for (int k = 1; k <= 12; k++) {
            twin_misalign(k);
            check_case(t, g, (Case){{NORM_LAYER, 3, 64, 1e-5f}, true, true, false, BOTH});
        }
    }
}

// Equal, huge, tiny, denormal and zero rows, one huge value, and a bad row between good ones.
static void extreme_rows_match(TestCtx *t) {
    const Ops *g;
    enum { N = 8, C = 64 };
    float x[N * C];
    static const float scale[N] = {1, 3, 1e17f, 1e-20f, 1e-39f, 0, 1, 1};
    test_noise(x, N * C, 1, 1);
    for (int i = 0; i < N * C; i++)
        x[i] = i / C == 1 ? -3.0f : x[i] * scale[i / C];
    x[6 * C + 5] = 1e16f, x[7 * C + 63] = NAN;
    FOR_EACH_TABLE(g) {
        for (int layer = 0; layer < 2; layer++) {
            NormArgs a = {layer ? NORM_LAYER : NORM_RMS, N, C, 1e-6f};
            Twin inp = twin_of(g, TYPE_FX, x, N * C), out = twin_new(g, TYPE_FX, N * C);
            Twin mean = twin_new(g, TYPE_F32, N), rstd = twin_new(g, TYPE_F32, N);
            Twin weight = twin_noise(g, TYPE_F32, C, 3, 2);
            ops_cpu()->add_norm_forward(cpu(out), NULL, layer ? mean.cpu : NULL, rstd.cpu, cpu(inp),
                                        NULL, weight.cpu, NULL, &a);
            g->add_norm_forward(gpu(out), NULL, layer ? mean.gpu : NULL, rstd.gpu, gpu(inp), NULL,
                                weight.gpu, NULL, &a);
            TWIN_CHECK_EACH(t, g, out, is_bf16(g) ? 0x1p-7 : 1e-4, 1e-3);
            TWIN_CHECK_EACH(t, g, rstd, 1e-4, 1e-30);
            TWIN_FREE(t, g, &inp, &out, &mean, &rstd, &weight);
        }
    }
}

static void gradients_of_weights_sum_many_rows(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        check_case(t, g, (Case){{NORM_LAYER, 301, 24, 1e-5f}, true, true, false, BOTH});
        check_case(t, g, (Case){{NORM_RMS, 131, 264, 1e-5f}, true, false, false, BOTH});
        check_case(t, g, (Case){{NORM_RMS, 9, 64, 1e-5f}, true, false, false, WEIGHT});
        check_case(t, g, (Case){{NORM_LAYER, 9, 64, 1e-5f}, true, false, false, BIAS});
    }
}

TEST_MAIN({"norms_match_at_all_widths", norms_match_at_all_widths},
          {"long_and_odd_rows_match", long_and_odd_rows_match},
          {"unaligned_rows_match", unaligned_rows_match},
          {"extreme_rows_match", extreme_rows_match},
          {"gradients_of_weights_sum_many_rows", gradients_of_weights_sum_many_rows})
