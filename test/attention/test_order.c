// test_order.c - every variant tells the core whether sums may be made in any order.
#include "test/arrays.h"
#include "test/attn_harness.h"

// What sdpa_backward was told last.
static bool told_any_order;

static void listening_backward(floatX *dq, floatX *dk, floatX *dv, const floatX *dout,
                               const floatX *out, const float *lse, const floatX *q,
                               const floatX *k, const floatX *v, const SdpaArgs *a) {
    told_any_order = a->any_order;
    ops_cpu()->sdpa_backward(dq, dk, dv, dout, out, lse, q, k, v, a);
}

static void check_variant(TestCtx *t, const char *name, AttnDims d) {
    enum { N = 2 * 3 * 12 };
    Ops ops = *ops_cpu();
    ops.sdpa_backward = listening_backward;
    d.B = 2, d.T = d.Tmax = 3, d.C = 12, d.HS = d.HV = 4, d.eps = 1e-6f;
    for (int any = 1; any >= 0; any--) {
        d.any_order = any;
        AttnHarness *h = harness_new(&ops, name, d, 1);
        float *x = floats_noise(N, 3, 1), *out = floats_new(N), *dx = floats_new(N);
        harness_forward(h, out, x);
        told_any_order = !any;
        harness_backward(h, dx, x, x);
        CHECK_MSG(t, told_any_order == any, "%s: any_order %d", name, any);
        floats_free(t, x), floats_free(t, out), floats_free(t, dx);
        harness_free(h);
    }
}

static void every_variant_passes_on_the_order_of_sums(TestCtx *t) {
    // Of each variant the sizes that decide which code runs.
    static const AttnDims dims[] = {{.NH = 4, .NKV = 4},
                                    {.NH = 4, .NKV = 1},
                                    {.NH = 4, .NKV = 2},
                                    {.NH = 4, .RKV = 6},
                                    {.NH = 4, .RKV = 6, .HR = 2, .position = POSITION_ROPE},
                                    {.NH = 4, .R = 3},
                                    {.NH = 4, .R = 3, .path = PATH_MERGED}};
    for (int i = 0; attention_table[i]; i++) {
        int n = 0;
        for (size_t k = 0; k < sizeof dims / sizeof dims[0]; k++) {
            AttnDims d = dims[k];
            d.HS = d.HV = 4, d.C = 12, d.B = d.T = d.Tmax = 1;
            if (attention_table[i]->check(&d)) continue;
            check_variant(t, attention_table[i]->name, dims[k]);
            n++;
        }
        CHECK_MSG(t, n > 0, "%s: no sizes in this file", attention_table[i]->name);
    }
}

TEST_MAIN({"every_variant_passes_on_the_order_of_sums", every_variant_passes_on_the_order_of_sums})
