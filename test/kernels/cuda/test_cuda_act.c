// test_cuda_act.c - activations, additions, heads and biases of the CUDA tables against the CPU's.
#include <math.h>

#include "test/kernels/cuda/twin.h"

static void check_act(TestCtx *t, const Ops *g, ActKind kind, size_t N, int F) {
    const Ops *o = ops_cpu();
    size_t n = N * (size_t)F, n_inp = kind == ACT_SWIGLU ? 2 * n : n;
    Twin inp = twin_noise(g, TYPE_FX, n_inp, 1, 6), out = twin_new(g, TYPE_FX, n);
    Twin dout = twin_noise(g, TYPE_FX, n, 2, 1), dinp = twin_new(g, TYPE_FX, n_inp);
    o->act_forward(cpu(out), cpu(inp), kind, N, F);
    g->act_forward(gpu(out), gpu(inp), kind, N, F);
    TWIN_CHECK(t, g, out, twin_tol(g, TYPE_FX, 8), 0);
    o->act_backward(cpu(dinp), cpu(dout), cpu(inp), kind, N, F);
    g->act_backward(gpu(dinp), gpu(dout), gpu(inp), kind, N, F);
    TWIN_CHECK(t, g, dinp, twin_tol(g, TYPE_FX, 8), 0);
    TWIN_FREE(t, g, &inp, &out, &dout, &dinp);
}

static void activations_match(TestCtx *t) {
    const Ops *g;
    static const int widths[] = {1, 8, 64, 72, 333};
    FOR_EACH_TABLE(g) {
        for (ActKind kind = ACT_GELU; kind <= ACT_SWIGLU; kind++) {
            for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
                check_act(t, g, kind, 3, widths[i]);
        }
    }
}

// Vector accesses are chosen by the width and by every address.
static void unaligned_activations_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        for (ActKind kind = ACT_GELU; kind <= ACT_SWIGLU; kind++) {
            check_act(t, g, kind, 40, 72);
            for (int k = 1; k <= 4; k++) {
                twin_misalign(k);
                check_act(t, g, kind, 2, 16);
            }
        }
    }
}

static void extreme_activations_match(TestCtx *t) {
    const Ops *g;
    float x[] = {NAN,   INFINITY, 1e30f, -1e30f, 0.0f,   -0.0f,  1e-30f, -1e-40f,
                 10.0f, -10.0f,   30.0f, -30.0f, 100.0f, -88.0f, 1.0f,   3e-39f};
    FOR_EACH_TABLE(g) {
        for (ActKind kind = ACT_GELU; kind <= ACT_SWIGLU; kind++) {
            size_t n = kind == ACT_SWIGLU ? 8 : 16;
            Twin inp = twin_of(g, TYPE_FX, x, 16), out = twin_new(g, TYPE_FX, n);
            Twin dout = twin_noise(g, TYPE_FX, n, 1, 1), dinp = twin_new(g, TYPE_FX, 16);
            ops_cpu()->act_forward(cpu(out), cpu(inp), kind, 1, (int)n);
            g->act_forward(gpu(out), gpu(inp), kind, 1, (int)n);
            TWIN_CHECK_EACH(t, g, out, is_bf16(g) ? 0x1p-7 : 1e-5, 1e-30);
            ops_cpu()->act_backward(cpu(dinp), cpu(dout), cpu(inp), kind, 1, (int)n);
            g->act_backward(gpu(dinp), gpu(dout), gpu(inp), kind, 1, (int)n);
            TWIN_CHECK_EACH(t, g, dinp, is_bf16(g) ? 0x1p-7 : 1e-5, 1e-20);
            TWIN_FREE(t, g, &inp, &out, &dout, &dinp);
        }
    }
}

static void activations_keep_nan_and_infinity(TestCtx *t) {
    const Ops *g;
    float x[] = {NAN, INFINITY, -INFINITY, 1e30f, -1e30f, 0.0f, -0.0f, 1e-30f};
    FOR_EACH_TABLE(g) {
        for (ActKind kind = ACT_GELU; kind <= ACT_RELU2; kind++) {
            Twin inp = twin_of(g, TYPE_FX, x, 8), out = twin_new(g, TYPE_FX, 8);
            g->act_forward(gpu(out), gpu(inp), kind, 1, 8);
            float *y = twin_download(g, &out);
            CHECK(t, isnan(y[0]) && y[1] == INFINITY && y[5] == 0.0f);
            CHECK(t, kind == ACT_RELU2 ? y[2] == 0.0f && y[4] == 0.0f : fabsf(y[4]) <= 1e23f);
            g->act_backward(gpu(out), gpu(inp), gpu(inp), kind, 1, 8);
            float *d = twin_download(g, &out);
            CHECK(t, isnan(d[0]));
            mem_free(y);
            mem_free(d);
            TWIN_FREE(t, g, &inp, &out);
        }
    }
}

static void check_add(TestCtx *t, const Ops *g, size_t n) {
    Twin a = twin_noise(g, TYPE_FX, n, 1, 1), b = twin_noise(g, TYPE_FX, n, 2, 1);
    Twin out = twin_new(g, TYPE_FX, n);
    ops_cpu()->add(cpu(out), cpu(a), cpu(b), n);
    g->add(gpu(out), gpu(a), gpu(b), n);
    TWIN_CHECK(t, g, out, twin_tol(g, TYPE_FX, 1), 0);
    ops_cpu()->add(cpu(a), cpu(a), cpu(b), n);
    g->add(gpu(a), gpu(a), gpu(b), n);
    TWIN_CHECK(t, g, a, twin_tol(g, TYPE_FX, 1), 0);
    TWIN_FREE(t, g, &a, &b, &out);
}

static void additions_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        for (size_t n = 1; n < 1000; n = n * 3 + 5)
            check_add(t, g, n);
        check_add(t, g, 2056);
        for (int k = 1; k <= 3; k++) {
            twin_misalign(k);
            check_add(t, g, 16);
        }
    }
}

static void check_heads(TestCtx *t, const Ops *g, int W1, int W2, bool shared, size_t pad,
                        bool with_a) {
    const Ops *o = ops_cpu();
    size_t N = 5, NH = 3, w1 = (size_t)W1, w2 = (size_t)W2;
    ConcatArgs c = {.N = N,
                    .NH = (int)NH,
                    .W1 = W1,
                    .W2 = W2,
                    .ld_out = NH * (w1 + w2) + pad,
                    .ld_a = NH * w1 + pad,
                    .ld_b = (shared ? w2 : NH * w2) + pad,
                    .a_head = w1,
                    .b_head = shared ? 0 : w2};
    Twin a = twin_noise(g, TYPE_FX, N * c.ld_a, 1, 1), b = twin_noise(g, TYPE_FX, N * c.ld_b, 2, 1);
    Twin out = twin_noise(g, TYPE_FX, N * c.ld_out, 3, 1);
    o->concat_heads(cpu(out), with_a ? cpu(a) : NULL, cpu(b), &c);
    g->concat_heads(gpu(out), with_a ? gpu(a) : NULL, gpu(b), &c);
    TWIN_CHECK(t, g, out, 0, 0);
    Twin dout = twin_noise(g, TYPE_FX, N * c.ld_out, 4, 1);
    o->split_heads(cpu(a), cpu(b), cpu(dout), &c);
    g->split_heads(gpu(a), gpu(b), gpu(dout), &c);
    TWIN_CHECK(t, g, a, 0, 0);
    TWIN_CHECK(t, g, b, twin_tol(g, TYPE_FX, NH), 0);
    TWIN_FREE(t, g, &a, &b, &out, &dout);
}

static void heads_are_joined_and_split(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        check_heads(t, g, 16, 8, false, 0, true);
        check_heads(t, g, 16, 8, true, 8, true);
        check_heads(t, g, 5, 3, true, 1, true);
        check_heads(t, g, 32, 16, false, 0, false);
        check_heads(t, g, 4, 6, false, 3, false);
        check_heads(t, g, 64, 72, false, 0, true);
        for (int k = 1; k <= 4; k++) {
            twin_misalign(k);
            check_heads(t, g, 16, 8, k == 2, 8, true);
        }
    }
}

static void check_bias(TestCtx *t, const Ops *g, size_t N, int W, size_t pad) {
    const Ops *o = ops_cpu();
    size_t ld = (size_t)W + pad;
    Twin x = twin_noise(g, TYPE_FX, N * ld, 1, 1), bias = twin_noise(g, TYPE_F32, (size_t)W, 2, 1);
    o->bias_add(cpu(x), ld, bias.cpu, N, W);
    g->bias_add(gpu(x), ld, bias.gpu, N, W);
    TWIN_CHECK(t, g, x, twin_tol(g, TYPE_FX, 1), 0);
    Twin d = twin_noise(g, TYPE_FX, N * ld, 3, 1);
    o->bias_dw(bias.cpu, cpu(d), ld, N, W);
    g->bias_dw(bias.gpu, gpu(d), ld, N, W);
    TWIN_CHECK(t, g, bias, twin_tol(g, TYPE_F32, N), 0);
    TWIN_FREE(t, g, &x, &bias, &d);
}

static void biases_and_their_gradients_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        check_bias(t, g, 1, 8, 0);
        check_bias(t, g, 37, 72, 8);
        check_bias(t, g, 301, 320, 0);
        check_bias(t, g, 131, 33, 2);
        check_bias(t, g, 3, 768, 0);
        for (int k = 1; k <= 3; k++) {
            twin_misalign(k);
            check_bias(t, g, 9, 64, 8);
        }
    }
}

TEST_MAIN({"activations_match", activations_match},
          {"unaligned_activations_match", unaligned_activations_match},
          {"extreme_activations_match", extreme_activations_match},
          {"activations_keep_nan_and_infinity", activations_keep_nan_and_infinity},
          {"additions_match", additions_match},
          {"heads_are_joined_and_split", heads_are_joined_and_split},
          {"biases_and_their_gradients_match", biases_and_their_gradients_match})
