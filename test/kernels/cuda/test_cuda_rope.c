// test_cuda_rope.c - qk_norm_rope of the CUDA tables against the CPU's.
#include <math.h>

#include "test/kernels/cuda/twin.h"

// gap: unused elements behind each head, pad: behind each token. late: the table of angles lies one
// pair behind its alignment.
typedef struct Case {
    int B, T, NH, HS, gap, pad;
    bool rope, norm, ragged, in_place, late;
    int inp_pad, out_pad;  // more unused elements behind each token of inp and dinp, of out
} Case;

enum { TMAX = 40 };

static void fill_rope(float *rope, int HS) {
    for (int p = 0; p < TMAX; p++) {
        for (int i = 0; i < HS / 2; i++) {
            double angle = p * pow(1e4, -2.0 * i / HS);
            rope[(p * (HS / 2) + i) * 2] = (float)cos(angle);
            rope[(p * (HS / 2) + i) * 2 + 1] = (float)sin(angle);
        }
    }
}

static void check_case(TestCtx *t, const Ops *g, Case c) {
    const Ops *o = ops_cpu();
    int start[] = {3, 0, 7};
    size_t heads = (size_t)c.B * c.T * c.NH, stride = (size_t)(c.HS + c.gap);
    size_t ld = c.NH * stride + (size_t)c.pad, n = (size_t)c.B * c.T * (ld + 8);
    RopeArgs a = {.B = c.B,
                  .T = c.T,
                  .NH = c.NH,
                  .HS = c.HS,
                  .head_stride = c.gap ? stride : 0,
                  .ld_inp = ld + (size_t)c.inp_pad,
                  .ld_out = ld + (size_t)c.out_pad,
                  .norm = c.norm,
                  .eps = 1e-6f};
    RopeArgs ga = a;
    Twin rope = twin_new(g, TYPE_F32, (size_t)TMAX * c.HS + 2);
    if (c.rope) {
        size_t first = c.late ? 2 : 0;
        fill_rope(rope.cpu + first, c.HS);
        g->upload_bytes(rope.gpu, rope.cpu, rope.n * sizeof(float));
        a.rope = rope.cpu + first, ga.rope = (float *)rope.gpu + first;
    }
    int *pos = twin_ints(g, start, 3);
    if (c.ragged) a.pos = start, ga.pos = pos;
    Twin inp = twin_noise(g, TYPE_FX, n, 1, 2), rstd = twin_noise(g, TYPE_F32, heads, 2, 1);
    Twin out = c.in_place ? inp : twin_noise(g, TYPE_FX, n, 3, 1);
    Twin dinp = twin_noise(g, TYPE_FX, n, 4, 1), dout = twin_noise(g, TYPE_FX, n, 5, 1);

    // Nothing is kept in inference, and nothing without norm, when backward reads neither y.
    if (!c.in_place) {
        g->qk_norm_rope_forward(gpu(out), NULL, gpu(inp), &ga);
        o->qk_norm_rope_forward(cpu(out), NULL, cpu(inp), &a);
        TWIN_CHECK(t, g, out, twin_tol(g, TYPE_FX, (size_t)c.HS), 0);
    }
    float *kept = c.norm ? rstd.cpu : NULL, *gkept = c.norm ? rstd.gpu : NULL;
    o->qk_norm_rope_forward(cpu(out), kept, cpu(inp), &a);
    g->qk_norm_rope_forward(gpu(out), gkept, gpu(inp), &ga);
    TWIN_CHECK(t, g, out, twin_tol(g, TYPE_FX, (size_t)c.HS), 0);
    TWIN_CHECK(t, g, rstd, twin_tol(g, TYPE_F32, (size_t)c.HS), 0);

    Twin dx = c.in_place ? dout : dinp;
    const floatX *y = c.norm ? cpu(out) : NULL, *gy = c.norm ? gpu(out) : NULL;
    size_t ld_y = a.ld_out;
    a.ld_out = ga.ld_out = ld;  // of dout
    o->qk_norm_rope_backward(cpu(dx), cpu(dout), y, ld_y, kept, &a);
    g->qk_norm_rope_backward(gpu(dx), gpu(dout), gy, ld_y, gkept, &ga);
    TWIN_CHECK(t, g, dx, 2 * twin_tol(g, TYPE_FX, (size_t)c.HS) + (is_bf16(g) ? 0x1p-8 : 0), 0);
    if (!c.in_place) twin_free(t, g, &out);
    TWIN_FREE(t, g, &rope, &inp, &rstd, &dinp, &dout);
    g->free(pos);
}

static void heads_match_at_all_sizes(TestCtx *t) {
    const Ops *g;
    static const int sizes[] = {8, 16, 48, 64, 72, 80, 128};
    FOR_EACH_TABLE(g) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            check_case(t, g, (Case){2, 3, 3, sizes[i], 0, 8, true, true, true, false, false, 0, 0});
            check_case(t, g,
                       (Case){1, 5, 1, sizes[i], 0, 0, true, false, false, true, false, 0, 0});
        }
        check_case(t, g, (Case){1, 2, 1, 1024, 0, 0, true, true, false, true, false, 0, 0});
        check_case(t, g, (Case){1, 2, 1, 1030, 0, 0, true, true, false, true, false, 0, 0});
    }
}

static void either_half_can_be_off(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        check_case(t, g, (Case){2, 3, 2, 64, 0, 0, false, true, false, false, false, 0, 0});
        check_case(t, g, (Case){2, 3, 2, 7, 0, 1, false, true, false, true, false, 0, 0});
        check_case(t, g, (Case){2, 3, 2, 9, 0, 0, false, false, true, false, false, 0, 0});
    }
}

static void heads_may_lie_apart_and_unaligned(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        check_case(t, g, (Case){2, 3, 2, 64, 32, 0, true, true, true, true, false, 0, 0});
        check_case(t, g, (Case){2, 3, 2, 64, 1, 3, true, true, false, false, false, 0, 0});
        check_case(t, g, (Case){1, 3, 3, 6, 2, 1, true, true, false, true, false, 0, 0});
        for (int k = 2; k <= 6; k++) {
            twin_misalign(k);
            check_case(t, g, (Case){1, 3, 2, 32, 0, 0, true, true, false, false, false, 0, 0});
        }
        check_case(t, g, (Case){1, 3, 2, 32, 0, 0, true, true, false, false, true, 0, 0});
        check_case(t, g, (Case){1, 2, 2, 32, 0, 0, true, true, false, false, false, 4, 0});
        check_case(t, g, (Case){1, 2, 2, 32, 0, 0, true, true, false, false, false, 0, 4});
        // Row strides and head strides that vectors cannot have, with sizes that they could.
        check_case(t, g, (Case){1, 2, 2, 64, 0, 4, true, true, false, false, false, 0, 0});
        check_case(t, g, (Case){1, 2, 2, 64, 4, 8, true, true, false, false, false, 0, 0});
    }
}

TEST_MAIN({"heads_match_at_all_sizes", heads_match_at_all_sizes},
          {"either_half_can_be_off", either_half_can_be_off},
          {"heads_may_lie_apart_and_unaligned", heads_may_lie_apart_and_unaligned})
