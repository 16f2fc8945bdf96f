// test_cuda_sdpa.c - attention of the CUDA tables against the CPU's: training and over a cache.
#include <math.h>

#include "test/kernels/cuda/twin.h"

// q, k, v lie side by side in one row per token, with `pad` elements behind.
typedef struct Case {
    int B, T, NH, NKV, HS, HV, pad;
} Case;

static SdpaArgs packed_args(Case c) {
    size_t q = (size_t)c.NH * c.HS, k = (size_t)c.NKV * c.HS, v = (size_t)c.NKV * c.HV;
    size_t row = q + k + v + (size_t)c.pad, o = (size_t)c.NH * c.HV, T = (size_t)c.T;
    return (SdpaArgs){.B = c.B,
                      .Tq = c.T,
                      .Tk = c.T,
                      .NH = c.NH,
                      .NKV = c.NKV,
                      .HS = c.HS,
                      .HV = c.HV,
                      .q_token = row,
                      .k_token = row,
                      .v_token = row,
                      .o_token = o,
                      .q_head = (size_t)c.HS,
                      .k_head = (size_t)c.HS,
                      .v_head = (size_t)c.HV,
                      .o_head = (size_t)c.HV,
                      .q_batch = T * row,
                      .k_batch = T * row,
                      .v_batch = T * row,
                      .o_batch = T * o,
                      .scale = 1 / sqrtf((float)c.HS),
                      .kv_type = TYPE_FX};
}

static void check_training(TestCtx *t, const Ops *g, Case c) {
    const Ops *o = ops_cpu();
    SdpaArgs a = packed_args(c);
    size_t B = (size_t)c.B, n = B * a.q_batch, k_at = (size_t)c.NH * c.HS;
    size_t v_at = k_at + (size_t)c.NKV * c.HS, stats = B * (size_t)c.NH * c.T;
    Twin x = twin_noise(g, TYPE_FX, n, 1, 2), out = twin_new(g, TYPE_FX, B * a.o_batch);
    Twin lse = twin_new(g, TYPE_F32, stats), dout = twin_noise(g, TYPE_FX, B * a.o_batch, 2, 1);
    Twin dx = twin_noise(g, TYPE_FX, n, 3, 1);
    floatX *q = cpu(x), *k = fx_at(o, q, k_at), *v = fx_at(o, q, v_at);
    floatX *gq = gpu(x), *gk = fx_at(g, gq, k_at), *gv = fx_at(g, gq, v_at);
    o->sdpa_forward(cpu(out), lse.cpu, q, k, v, &a);
    g->sdpa_forward(gpu(out), lse.gpu, gq, gk, gv, &a);
    // P is rounded to bf16 for tensor cores; sums are fp32.
    double tol = 4 * twin_tol(g, TYPE_FX, (size_t)c.T);
    TWIN_CHECK(t, g, out, tol, 0);
    TWIN_CHECK(t, g, lse, 8 * twin_tol(g, TYPE_F32, (size_t)(c.T + c.HS)), 1e-6);

    floatX *dq = cpu(dx), *gdq = gpu(dx);
    o->sdpa_backward(dq, fx_at(o, dq, k_at), fx_at(o, dq, v_at), cpu(dout), cpu(out), lse.cpu, q, k,
                     v, &a);
    g->sdpa_backward(gdq, fx_at(g, gdq, k_at), fx_at(g, gdq, v_at), gpu(dout), gpu(out), lse.gpu,
                     gq, gk, gv, &a);
    TWIN_CHECK(t, g, dx, 2 * tol, 0);
    TWIN_FREE(t, g, &x, &out, &lse, &dout, &dx);
}

static void training_matches(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        check_training(t, g, (Case){2, 33, 2, 2, 16, 16, 0});
        check_training(t, g, (Case){1, 40, 4, 2, 64, 64, 8});
        check_training(t, g, (Case){1, 1, 3, 1, 8, 8, 0});
        check_training(t, g, (Case){1, 17, 3, 1, 24, 8, 0});
    }
}

static void odd_and_wide_heads_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        check_training(t, g, (Case){1, 7, 2, 1, 13, 9, 3});
        check_training(t, g, (Case){1, 9, 2, 2, 136, 144, 0});
        check_training(t, g, (Case){1, 5, 1, 1, 72, 160, 1});
    }
}

// A cache of its own for keys and values, or one whose rows serve as both (v a prefix of k).
static void check_extend(TestCtx *t, const Ops *g, Case c, bool kv_bf16, bool prefix, int far) {
    const Ops *o = ops_cpu();
    enum { B = 3 };
    int pos[B] = {far, 0, 5}, n_new[B] = {c.T, c.T > 1 ? c.T - 1 : 1, 0}, Tmax = far + c.T;
    int *gpos = twin_ints(g, pos, B), *gnew = twin_ints(g, n_new, B);
    SdpaArgs a = packed_args(c);
    size_t kv_row = prefix ? (size_t)c.NKV * c.HS : (size_t)c.NKV * (c.HS + c.HV);
    size_t cache = B * (size_t)Tmax * kv_row, v_at = prefix ? 0 : (size_t)c.NKV * c.HS;
    a.B = B, a.Tk = Tmax, a.k_token = a.v_token = kv_row, a.k_batch = a.v_batch = Tmax * kv_row;
    if (prefix) a.v_head = a.k_head;
    a.kv_type = kv_bf16 ? TYPE_BF16 : TYPE_F32, a.max_pos = far + c.T;
    Twin q = twin_noise(g, TYPE_FX, B * a.q_batch, 1, 2),
         out = twin_noise(g, TYPE_FX, B * a.o_batch, 2, 1);
    float *rows = mem_alloc(cache, sizeof(float));
    test_noise(rows, cache, 3, 2);
    uint16_t *half = mem_alloc(cache, sizeof *half);
    for (size_t i = 0; i < cache; i++)
        half[i] = bf16_from_f32(rows[i]);
    size_t size = kv_bf16 ? 2 : 4;
    const char *k = kv_bf16 ? (char *)half : (char *)rows;
    char *gk = g->alloc(cache * size);
    g->upload_bytes(gk, k, cache * size);
    SdpaArgs ca = a, ga = a;
    ca.pos = pos, ca.n_new = n_new, ga.pos = gpos, ga.n_new = gnew;
    o->sdpa_extend(cpu(out), cpu(q), k, k + v_at * size, &ca);
    g->sdpa_extend(gpu(out), gpu(q), gk, gk + v_at * size, &ga);
    TWIN_CHECK(t, g, out, 4 * twin_tol(g, TYPE_FX, (size_t)Tmax), 0);
    TWIN_FREE(t, g, &q, &out);
    g->free(gk), g->free(gpos), g->free(gnew);
    mem_free(rows), mem_free(half);
}

static void extending_a_cache_matches(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        for (int kv_bf16 = 0; kv_bf16 < 2; kv_bf16++) {
            check_extend(t, g, (Case){0, 1, 4, 2, 16, 16, 0}, kv_bf16, false, 37);
            check_extend(t, g, (Case){0, 5, 3, 1, 24, 8, 0}, kv_bf16, false, 9);
            check_extend(t, g, (Case){0, 3, 2, 2, 7, 5, 1}, kv_bf16, false, 30);
        }
    }
}

static void values_may_be_a_prefix_of_keys(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        check_extend(t, g, (Case){0, 2, 6, 1, 40, 32, 0}, true, true, 20);
        check_extend(t, g, (Case){0, 1, 3, 1, 168, 136, 0}, true, true, 33);
    }
}

static void long_caches_are_split(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        check_extend(t, g, (Case){0, 1, 2, 1, 8, 8, 0}, true, false, 500);
        check_extend(t, g, (Case){0, 2, 2, 1, 9, 8, 0}, false, false, 300);
    }
}

TEST_MAIN({"training_matches", training_matches},
          {"odd_and_wide_heads_match", odd_and_wide_heads_match},
          {"extending_a_cache_matches", extending_a_cache_matches},
          {"values_may_be_a_prefix_of_keys", values_may_be_a_prefix_of_keys},
          {"long_caches_are_split", long_caches_are_split})
