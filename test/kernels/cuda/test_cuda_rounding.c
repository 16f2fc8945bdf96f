// test_cuda_rounding.c - bf16 parameters without fp32 masters: the optimizers round to either
// neighbour at random, by the documented bits, right on average, the same again for the same key.
#include <math.h>
#include <string.h>

#include "gpt/rng.h"
#include "test/kernels/cuda/twin.h"

enum { N = 4096, ODD = 4099 };                   // four elements at a time, and one
static const float START = 1.5f, ULP = 0x1p-7f;  // distance of bf16 values at START

typedef struct Params {
    floatX *p;
    float *m, *v, *g;
    StepState *state;
} Params;

static float *filled(const Ops *g, size_t n, float value) {
    float *host = mem_alloc(n, sizeof(float)), *device = g->alloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        host[i] = value;
    g->upload_bytes(device, host, n * sizeof(float));
    mem_free(host);
    return device;
}

// n parameters at START, moments at zero, gradients and updates of `gradient`.
static Params params_new(const Ops *g, size_t n, float gradient) {
    Params x = {.p = g->alloc(n * g->elem_size), .state = g->alloc(sizeof(StepState))};
    float *host = mem_alloc(n, sizeof(float));
    for (size_t i = 0; i < n; i++)
        host[i] = START;
    g->upload(x.p, host, n);
    mem_free(host);
    x.m = filled(g, n, 0), x.v = filled(g, n, 0), x.g = filled(g, n, gradient);
    g->step_begin(x.state);
    return x;
}

static void params_free(const Ops *g, Params *x) {
    g->free(x->p), g->free(x->m), g->free(x->v), g->free(x->g), g->free(x->state);
}

// START - lr through AdamW's first step (whose update is lr times the gradient's sign), or START -
// lr * gradient through Muon's; n floats, the caller's.
static float *stepped(const Ops *g, size_t n, bool muon, float lr, float gradient, uint64_t key) {
    Params x = params_new(g, n, gradient);
    AdamWArgs a = {TYPE_FX, lr, 0.9f, 0.95f, 1e-12f, 0, 0.1f, 0.05f, key};
    if (muon)
        g->muon_apply(x.p, NULL, TYPE_FX, x.g, n, lr, 0, key, x.state);
    else
        g->adamw(x.p, NULL, x.m, x.v, x.g, n, &a, x.state);
    float *out = mem_alloc(n, sizeof(float));
    g->download(out, x.p, n);
    params_free(g, &x);
    return out;
}

static double mean(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i];
    return sum / (double)n;
}

// Steps of 1/32 of the distance: rounding to nearest would lose all of them.
static void small_steps_are_right_on_average(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        for (int k = 0; k < 4 && is_bf16(g); k++) {
            size_t n = k / 2 ? N : ODD;
            double p = 1.0 / 32, deviation = sqrt(p * (1 - p) / (double)n);
            float *x = stepped(g, n, k % 2, ULP / 32, 1, 77);
            double moved = ((double)START - mean(x, n)) / (double)ULP;
            CHECK_MSG(t, fabs(moved - p) < 5 * deviation, "moved by %g of a step of %g", moved, p);
            for (size_t i = 0; i < n; i++)
                CHECK(t, x[i] == START || x[i] == START - ULP);
            mem_free(x);
        }
    }
}

// The bits that ops.h promises: quarter i % 4 of the i / 4-th number.
static void the_bits_are_the_documented_ones(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        for (int odd = 0; odd < 2 && is_bf16(g); odd++) {
            size_t n = odd ? ODD : N, wrong = 0;
            uint64_t key = rng_key(5, "wte");
            float *x = stepped(g, n, true, 0x1p-20f, 3000, key);
            for (size_t i = 0; i < n; i++) {
                uint32_t u;
                float want = START - 3000 * 0x1p-20f;
                memcpy(&u, &want, 4);
                u += (uint32_t)(rng_u64(key, i / 4) >> 16 * (i % 4)) & 0xFFFF;
                u &= 0xFFFF0000u;
                memcpy(&want, &u, 4);
                wrong += x[i] != want;
            }
            CHECK_MSG(t, wrong == 0, "%zu of %zu values", wrong, n);
            mem_free(x);
        }
    }
}

static void a_key_decides(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        float *a = stepped(g, N, false, ULP / 4, 1, 1), *b = stepped(g, N, false, ULP / 4, 1, 1),
              *c = stepped(g, N, false, ULP / 4, 1, 2);
        CHECK_SAME_BITS(t, a, b, N * sizeof(float));
        // fp32 values are their own masters, and need no rounding.
        CHECK(t, (memcmp(a, c, N * sizeof(float)) != 0) == is_bf16(g));
        mem_free(a);
        mem_free(b);
        mem_free(c);
    }
}

// Random bits added to the NaN of GPUs would carry into its sign and leave a zero.
static void what_is_not_finite_stays_so(TestCtx *t) {
    const Ops *g;
    uint32_t bits = 0x7FFFFFFF;
    float full;
    memcpy(&full, &bits, sizeof full);
    FOR_EACH_TABLE(g) {
        float *x = stepped(g, N, true, 1, full, 3), *y = stepped(g, N, true, 1, INFINITY, 3);
        for (int i = 0; i < N; i++)
            CHECK(t, isnan(x[i]) && isinf(y[i]) && y[i] < 0);
        mem_free(x);
        mem_free(y);
    }
}

TEST_MAIN({"small_steps_are_right_on_average", small_steps_are_right_on_average},
          {"the_bits_are_the_documented_ones", the_bits_are_the_documented_ones},
          {"a_key_decides", a_key_decides},
          {"what_is_not_finite_stays_so", what_is_not_finite_stays_so})
