// sdpa_backward.c - gradients of attention, with the probabilities recomputed from lse.
// P = exp(S scale - lse), dS = P (dP - delta) scale, delta = rowsum(dout out); Dao et al. 2022,
// alg. 4.
//
// Two schedules give the same bits, because every sum keeps its order (keys ascending for dq; heads
// of the group, then queries, ascending for dk and dv): whole key/value heads, five products a tile
// pair, when there are enough of them for the threads; else key tiles for dk and dv, then query
// blocks for dq, seven products.
#include <stdlib.h>
#ifdef _OPENMP
    #include <omp.h>
#endif

#include "gpt/util.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/sdpa.h"
#include "kernels/cpu/sdpa_tile.h"
#include "kernels/cpu/vexp.h"

enum { ROWS = 96 };  // queries at a time

typedef struct Backward {
    const SdpaArgs *a;
    float *dq, *dk, *dv;
    const float *dout, *out, *lse, *q, *k, *v;
    float *delta;  // (B, NH, Tq)
} Backward;

// Scratch of one thread.
typedef struct Tiles {
    float *kt, *vt;   // (HS, TILE_K), (HV, TILE_K) panels: one tile of keys and values, transposed
    float *kp;        // (TILE_K, HS) panels of the same keys
    float *qp, *dop;  // (ROWS, HS), (ROWS, HV) panels
    float *p, *ds;    // (ROWS, TILE_K)
    float *dk, *dv;   // (TILE_K, HS), (TILE_K, HV)
    float *dq;        // (ROWS, HS)
    float *memory;
} Tiles;

static Tiles tiles_alloc(const SdpaArgs *a) {
    size_t hs = round_up((size_t)a->HS, PANEL), hv = round_up((size_t)a->HV, PANEL);
    Tiles t;
    float *next = t.memory =
        scratch_floats((3 * TILE_K + 2 * ROWS) * hs + (2 * TILE_K + ROWS) * hv + 2 * ROWS * TILE_K);
    t.kt = scratch_take(&next, hs * TILE_K);
    t.vt = scratch_take(&next, hv * TILE_K);
    t.kp = scratch_take(&next, hs * TILE_K);
    t.qp = scratch_take(&next, hs * ROWS);
    t.dop = scratch_take(&next, hv * ROWS);
    t.p = scratch_take(&next, ROWS * TILE_K);
    t.ds = scratch_take(&next, ROWS * TILE_K);
    t.dk = scratch_take(&next, hs * TILE_K);
    t.dv = scratch_take(&next, hv * TILE_K);
    t.dq = scratch_take(&next, hs * ROWS);
    return t;
}

// c (M, N) (+)= a b with b in PANEL panels of `height` rows.
static void product(float *c, size_t ldc, const float *a, size_t a_row, size_t a_col,
                    const float *b, int height, int M, int N, int K, bool accumulate) {
    for (int j = 0; j < N; j += PANEL)
        gemm_tile(c + j, ldc, a, a_row, a_col, b + (size_t)j * (size_t)height, PANEL, M,
                  min_int(PANEL, N - j), K, accumulate);
}

static void load_keys(const Backward *w, const Tiles *t, int b, int kv_head, int key, int n) {
    const SdpaArgs *a = w->a;
    const float *k =
        w->k + (size_t)b * a->k_batch + (size_t)kv_head * a->k_head + (size_t)key * a->k_token;
    const float *v =
        w->v + (size_t)b * a->v_batch + (size_t)kv_head * a->v_head + (size_t)key * a->v_token;
    tile_transpose(t->kt, PANEL, k, TYPE_F32, a->k_token, n, a->HS);
    tile_transpose(t->vt, PANEL, v, TYPE_F32, a->v_token, n, a->HV);
    tile_panels(t->kp, TILE_K, k, TYPE_F32, a->k_token, n, a->HS);
}

// P and dS of one row from S and dP; the first `seen` keys count.
static inline void row_gradient(float *p, float *ds, float lse, float delta, float scale, int seen,
                                bool masked) {
    for (int i = 0; i < TILE_K; i += LANES) {
        VecF x = vec_exp(vec_load(p + i) * scale - lse);
        VecF d = x * (vec_load(ds + i) - delta) * scale;
        if (masked) {
            VecI keep = vec_first(seen - i);
            x = vec_select(keep, x, (VecF){0});
            d = vec_select(keep, d, (VecF){0});
        }
        vec_store(p + i, x);
        vec_store(ds + i, d);
    }
}

// Queries t0..t0+n of head h against the tile at `key`: fills t->p and t->ds.
static void pair_gradient(const Backward *w, const Tiles *t, int b, int h, int t0, int n, int key) {
    const SdpaArgs *a = w->a;
    const float *q =
        w->q + (size_t)b * a->q_batch + (size_t)h * a->q_head + (size_t)t0 * a->q_token;
    const float *dout =
        w->dout + (size_t)b * a->o_batch + (size_t)h * a->o_head + (size_t)t0 * a->o_token;
    int keys = (int)round_up((size_t)min_int(TILE_K, a->Tk - key), LANES);
    product(t->p, TILE_K, q, a->q_token, 1, t->kt, a->HS, n, keys, a->HS, false);
    product(t->ds, TILE_K, dout, a->o_token, 1, t->vt, a->HV, n, keys, a->HV, false);
    size_t row = ((size_t)b * (size_t)a->NH + (size_t)h) * (size_t)a->Tq + (size_t)t0;
    for (int i = 0; i < n; i++) {
        int seen = t0 + i - key + 1;
        float *p = t->p + (size_t)i * TILE_K, *ds = t->ds + (size_t)i * TILE_K;
        float lse = w->lse[row + (size_t)i], delta = w->delta[row + (size_t)i];
        if (seen >= TILE_K)
            row_gradient(p, ds, lse, delta, a->scale, TILE_K, false);
        else
            row_gradient(p, ds, lse, delta, a->scale, seen, true);
    }
}

// dk and dv of one tile; with dq also the tile's share of the dq of all its queries.
static void key_tile(const Backward *w, const Tiles *t, int b, int kv_head, int key, bool with_dq) {
    const SdpaArgs *a = w->a;
    int n_keys = min_int(TILE_K, a->Tk - key), G = a->NH / a->NKV;
    load_keys(w, t, b, kv_head, key, n_keys);
    bool more = false;
    for (int h = kv_head * G; h < (kv_head + 1) * G; h++) {
        for (int t0 = key; t0 < a->Tq; t0 += ROWS) {
            int n = min_int(ROWS, a->Tq - t0);
            size_t at = (size_t)b * a->q_batch + (size_t)h * a->q_head + (size_t)t0 * a->q_token;
            pair_gradient(w, t, b, h, t0, n, key);
            tile_panels(t->qp, ROWS, w->q + at, TYPE_F32, a->q_token, n, a->HS);
            tile_panels(t->dop, ROWS,
                        w->dout + (size_t)b * a->o_batch + (size_t)h * a->o_head +
                            (size_t)t0 * a->o_token,
                        TYPE_F32, a->o_token, n, a->HV);
            product(t->dv, (size_t)a->HV, t->p, 1, TILE_K, t->dop, ROWS, n_keys, a->HV, n, more);
            product(t->dk, (size_t)a->HS, t->ds, 1, TILE_K, t->qp, ROWS, n_keys, a->HS, n, more);
            if (with_dq)
                product(w->dq + at, a->q_token, t->ds, TILE_K, 1, t->kp, TILE_K, n, a->HS, n_keys,
                        key > 0);
            more = true;
        }
    }
    for (int i = 0; i < n_keys; i++) {
        size_t token = (size_t)(key + i);
        memcpy(w->dk + (size_t)b * a->k_batch + (size_t)kv_head * a->k_head + token * a->k_token,
               t->dk + (size_t)i * (size_t)a->HS, (size_t)a->HS * sizeof(float));
        memcpy(w->dv + (size_t)b * a->v_batch + (size_t)kv_head * a->v_head + token * a->v_token,
               t->dv + (size_t)i * (size_t)a->HV, (size_t)a->HV * sizeof(float));
    }
}

// dq of queries t0..t0+ROWS of one head.
static void query_block(const Backward *w, const Tiles *t, int b, int h, int t0) {
    const SdpaArgs *a = w->a;
    int end = min_int(t0 + ROWS, a->Tq), kv_head = h / (a->NH / a->NKV);
    for (int key = 0; key < end; key += TILE_K) {
        int first = key > t0 ? key : t0, n_keys = min_int(TILE_K, a->Tk - key);
        load_keys(w, t, b, kv_head, key, n_keys);
        pair_gradient(w, t, b, h, first, end - first, key);
        product(t->dq + (size_t)(first - t0) * (size_t)a->HS, (size_t)a->HS, t->ds, TILE_K, 1,
                t->kp, TILE_K, end - first, a->HS, n_keys, key > 0);
    }
    for (int i = t0; i < end; i++)
        memcpy(w->dq + (size_t)b * a->q_batch + (size_t)h * a->q_head + (size_t)i * a->q_token,
               t->dq + (size_t)(i - t0) * (size_t)a->HS, (size_t)a->HS * sizeof(float));
}

static void delta_row(const Backward *w, size_t row) {
    const SdpaArgs *a = w->a;
    size_t T = (size_t)a->Tq, NH = (size_t)a->NH;
    size_t t = row % T, h = row / T % NH, b = row / T / NH;
    size_t at = b * a->o_batch + h * a->o_head + t * a->o_token;
    VecF sum = {0};
    int i = 0;
    for (; i + LANES <= a->HV; i += LANES)
        sum += vec_load(w->dout + at + i) * vec_load(w->out + at + i);
    if (i < a->HV)
        sum += vec_load_n(w->dout + at + i, a->HV - i) * vec_load_n(w->out + at + i, a->HV - i);
    w->delta[row] = vec_sum(sum);
}

static int threads_here(void) {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

// Runs in every thread of the team.
static void backward_run(const Backward *w, bool whole_heads) {
    const SdpaArgs *a = w->a;
    Tiles t = tiles_alloc(a);
    size_t rows = (size_t)a->B * (size_t)a->NH * (size_t)a->Tq;
    int64_t pairs = (int64_t)a->B * a->NKV, heads = (int64_t)a->B * a->NH;
    int64_t key_tiles = (int64_t)ceil_div((size_t)a->Tk, TILE_K);
    int64_t blocks = (int64_t)ceil_div((size_t)a->Tq, ROWS);
#pragma omp for schedule(static)
    for (size_t row = 0; row < rows; row++)
        delta_row(w, row);
    if (whole_heads) {
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < pairs; i++) {
            for (int64_t tile = 0; tile < key_tiles; tile++)
                key_tile(w, &t, (int)(i / a->NKV), (int)(i % a->NKV), (int)tile * TILE_K, true);
        }
    } else {
        // The first key tiles and the last query blocks have the most to do: they go first.
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t i = 0; i < pairs * key_tiles; i++) {
            int64_t pair = i % pairs;
            key_tile(w, &t, (int)(pair / a->NKV), (int)(pair % a->NKV), (int)(i / pairs) * TILE_K,
                     false);
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < heads * blocks; i++) {
            int64_t head = i % heads;
            query_block(w, &t, (int)(head / a->NH), (int)(head % a->NH),
                        (int)(blocks - 1 - i / heads) * ROWS);
        }
    }
    free(t.memory);
}

void sdpa_backward_cpu(floatX *dq, floatX *dk, floatX *dv, const floatX *dout, const floatX *out,
                       const float *lse, const floatX *q, const floatX *k, const floatX *v,
                       const SdpaArgs *a) {
    Backward w = {.a = a,
                  .dq = (float *)dq,
                  .dk = (float *)dk,
                  .dv = (float *)dv,
                  .dout = (const float *)dout,
                  .out = (const float *)out,
                  .lse = lse,
                  .q = (const float *)q,
                  .k = (const float *)k,
                  .v = (const float *)v};
    w.delta = scratch_floats((size_t)a->B * (size_t)a->NH * (size_t)a->Tq);
    size_t pairs = (size_t)a->B * (size_t)a->NKV, threads = (size_t)threads_here();
    bool whole_heads = 5 * ceil_div(pairs, threads) * threads <= 7 * pairs;
#pragma omp parallel
    backward_run(&w, whole_heads);
    free(w.delta);
}
