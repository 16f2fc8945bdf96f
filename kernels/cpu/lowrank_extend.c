// lowrank_extend.c - cached attention over low-rank rows: keys are rebuilt tile by tile in scratch,
//   k_h = norm(rope(ks + zk_h bk_h^T + bias_k)),
// positions side by side as the latent blocks hold them; the values stay factored until the end,
//   out_h = (sum p vs + (sum p zv_h) bv_h^T) / sum p + bias_v.
// Never more than one tile of keys exists. Splits of the keys are those of sdpa_extend.c, and a
// row's bits depend on its own position and cache alone.
#include <math.h>
#include <stdlib.h>
#ifdef _OPENMP
    #include <omp.h>
#endif

#include "gpt/util.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/sdpa.h"
#include "kernels/cpu/sdpa_tile.h"

enum { ROWS = 192 };                     // most rows of a block, all its heads together
static const size_t STORED = 16u << 20;  // most floats of stored partial results

// Some heads and tokens of one row of the batch.
typedef struct Work {
    int b, head, n_heads, token, n_tokens;
    int end, splits;  // keys that the last token sees
    size_t first;     // index of its first split among all
} Work;

typedef struct Plan {
    SdpaArgs a;  // with a key head for every query head
    const LowRankCache *c;
    float *out;
    const float *q;
    int width;     // of a state's o: [values (HV, when vs is given) | latent values (r)]
    int rows_max;  // heads times tokens of the largest work
    int panel;
    Work *work;
    int n_work;
    size_t n_splits;
    int *owner;      // (n_splits) the work that a split belongs to
    float *partial;  // (n_splits) states, or NULL when every work folds by itself
    size_t partial_size;
} Plan;

// Scratch of one thread. Rows are ordered by head, then token.
typedef struct Memory {
    float *floats;
    RowBlock block, part;
    float *kt, *ks_t;      // (HS, TILE_K) panels: keys of one head; shared keys
    float *rope_t;         // (HS, TILE_K) panels: row 2i cosines, 2i+1 sines
    float *zk, *zv;        // (r, TILE_K)
    float *zv_t;           // (TILE_K, r) panels
    float *vs;             // (TILE_K, HV) panels or rows
    float *bv_t, *result;  // (r, HV) panels; (rows, HV)
    float factor[TILE_K];
} Memory;

static size_t latent_room(const LowRankCache *c) {
    return round_up((size_t)c->r, TILE_K) * TILE_K;
}

static Memory memory_alloc(const Plan *p) {
    size_t hs = (size_t)p->a.HS, hv = round_up((size_t)p->a.HV, TILE_K), r = (size_t)p->c->r;
    size_t rows = (size_t)p->rows_max, z = latent_room(p->c);
    Memory m;
    float *next = m.floats = scratch_floats(
        rows_room(p->rows_max, p->a.HS, p->width) + state_room(p->rows_max, p->width) +
        3 * hs * TILE_K + 3 * z + hv * TILE_K + round_up(r * hv + rows * (size_t)p->a.HV, 16) + 16);
    m.block = rows_carve(&next, p->rows_max, p->a.HS, p->width);
    m.part = state_carve(&next, &m.block, p->rows_max);
    m.kt = scratch_take(&next, hs * TILE_K);
    m.ks_t = scratch_take(&next, hs * TILE_K);
    m.rope_t = scratch_take(&next, hs * TILE_K);
    m.zk = scratch_take(&next, z);
    m.zv = scratch_take(&next, z);
    m.zv_t = scratch_take(&next, z);
    m.vs = scratch_take(&next, hv * TILE_K);
    m.bv_t = scratch_take(&next, r * hv);
    m.result = scratch_take(&next, rows * (size_t)p->a.HV);
    return m;
}

static const void *element(const Plan *p, const void *base, size_t i) {
    return (const char *)base + i * (p->a.kv_type == TYPE_BF16 ? 2 : 4);
}

// The r latent rows of a head in one block of positions, fp32 and 0 beyond n_keys: in place when
// they lie so already.
static const float *latent_tile(const Plan *p, float *scratch, const void *z, size_t batch, int b,
                                int n_z, int head, int key, int n_keys) {
    const LowRankCache *c = p->c;
    size_t row =
        (size_t)key / LATENT_BLOCK * (size_t)n_z + (c->shared_z ? 0 : (size_t)(head * c->r));
    const void *src = element(p, z, (size_t)b * batch + row * LATENT_BLOCK);
    if (p->a.kv_type == TYPE_F32 && n_keys == TILE_K) return src;
    if (n_keys < TILE_K) memset(scratch, 0, (size_t)c->r * TILE_K * sizeof(float));
    for (int i = 0; i < c->r; i++)
        tile_rows(scratch + (size_t)i * TILE_K, element(p, src, (size_t)i * LATENT_BLOCK),
                  p->a.kv_type, 0, 1, n_keys);
    return scratch;
}

// (TILE_K, r) panels of zv for the sum over positions.
static void latent_values(const Plan *p, Memory *m, int b, int head, int key, int n_keys) {
    const LowRankCache *c = p->c;
    const float *z = latent_tile(p, m->zv, c->zv, c->zv_batch, b, c->n_zv, head, key, n_keys);
    for (int i = 0; i < c->r; i += TILE_K)
        tile_transpose(m->zv_t + (size_t)i * TILE_K, PANEL, z + (size_t)i * TILE_K, TYPE_F32,
                       TILE_K, min_int(TILE_K, c->r - i), TILE_K);
}

// What all heads of a tile share.
static void shared_tile(const Plan *p, Memory *m, int b, int key, int n_keys) {
    const LowRankCache *c = p->c;
    size_t HS = (size_t)p->a.HS, HV = (size_t)p->a.HV;
    if (c->rope)
        tile_transpose(m->rope_t, p->panel, c->rope + (size_t)key * HS, TYPE_F32, HS, n_keys,
                       p->a.HS);
    if (c->ks)
        tile_transpose(m->ks_t, p->panel,
                       element(p, c->ks, (size_t)b * c->ks_batch + (size_t)key * HS), p->a.kv_type,
                       HS, n_keys, p->a.HS);
    if (c->vs) {
        const void *v = element(p, c->vs, (size_t)b * c->vs_batch + (size_t)key * HV);
        if (p->panel == PANEL)
            tile_panels(m->vs, TILE_K, v, p->a.kv_type, HV, n_keys, p->a.HV);
        else
            tile_rows(m->vs, v, p->a.kv_type, HV, n_keys, p->a.HV);
    }
    if (c->shared_z && c->r) latent_values(p, m, b, 0, key, n_keys);
}

// What is added to and done with the keys of LANES positions; rows are ld apart, pointers may be
// NULL.
typedef struct Finish {
    const float *shared, *rope;  // (HS, ld)
    const float *bias;           // (HS)
    int HS;
    size_t ld;
} Finish;

static inline VecF finished(const Finish *f, const float *k, int i) {
    VecF x = vec_load(k + (size_t)i * f->ld);
    if (f->shared) x += vec_load(f->shared + (size_t)i * f->ld);
    if (f->bias) x += f->bias[i];
    return x;
}

// In place; returns the sum of squares of each key.
static VecF finish_keys(float *k, const Finish *f) {
    VecF sum = {0};
    int half = f->rope ? f->HS / 2 : 0;
    for (int i = 0; i < half; i++) {
        VecF x1 = finished(f, k, i), x2 = finished(f, k, i + half);
        VecF cosine = vec_load(f->rope + (size_t)(2 * i) * f->ld);
        VecF sine = vec_load(f->rope + (size_t)(2 * i + 1) * f->ld);
        VecF y1 = x1 * cosine + x2 * sine, y2 = x2 * cosine - x1 * sine;
        vec_store(k + (size_t)i * f->ld, y1);
        vec_store(k + (size_t)(i + half) * f->ld, y2);
        sum += y1 * y1 + y2 * y2;
    }
    for (int i = 2 * half; i < f->HS; i++) {
        VecF x = finished(f, k, i);
        vec_store(k + (size_t)i * f->ld, x);
        sum += x * x;
    }
    return sum;
}

// m->kt: keys of one head. The norm is a factor of the key's scores, so it goes into m->factor.
static void build_keys(const Plan *p, Memory *m, int head, const float *z) {
    const LowRankCache *c = p->c;
    size_t HS = (size_t)p->a.HS, panel = (size_t)p->panel;
    const float *bk = (const float *)c->bk + (size_t)head * HS * (size_t)c->ld_b;
    for (size_t i = 0; i < TILE_K; i += panel) {
        float *k = m->kt + i * HS;
        gemm_tile(k, panel, bk, (size_t)c->ld_b, 1, z + i, TILE_K, p->a.HS, p->panel, c->r, false);
        for (size_t j = 0; j < panel; j += LANES) {
            Finish f = {.HS = p->a.HS, .ld = panel};
            if (c->ks) f.shared = m->ks_t + i * HS + j;
            if (c->rope) f.rope = m->rope_t + i * HS + j;
            if (c->bias_k) f.bias = c->bias_k + (size_t)head * HS;
            vec_store(m->factor + i + j, finish_keys(k + j, &f));
        }
    }
    for (int i = 0; i < TILE_K; i++) {
        float squares = m->factor[i] / (float)p->a.HS;
        m->factor[i] = c->norm ? p->a.scale / sqrtf(squares + c->eps) : p->a.scale;
    }
}

// The rows of one head of a block.
static RowBlock head_rows(const RowBlock *b, int i, int n) {
    RowBlock h = *b;
    size_t row = (size_t)(i * n);
    h.n = n;
    h.q += row * (size_t)b->HS;
    h.limit += row;
    h.o += row * (size_t)b->width;
    h.m += row;
    h.l += row;
    return h;
}

static void tile_run(const Plan *p, const Work *w, const RowBlock *state, Memory *m, int key) {
    const LowRankCache *c = p->c;
    int n_keys = min_int(TILE_K, w->end - key), latents = c->vs ? p->a.HV : 0;
    shared_tile(p, m, w->b, key, n_keys);
    const float *z = NULL;
    for (int i = 0; i < w->n_heads; i++) {
        RowBlock rows = head_rows(state, i, w->n_tokens);
        TileSpan t = tile_span(&rows, key, w->end);
        if (!z || !c->shared_z)
            z = latent_tile(p, m->zk, c->zk, c->zk_batch, w->b, c->n_zk, w->head + i, key, n_keys);
        build_keys(p, m, w->head + i, z);
        rows_scores(&rows, t, m->kt);
        rows_softmax(&rows, t, m->factor);
        if (c->vs)
            rows_values(&rows, t, m->vs, p->panel == PANEL ? 0 : (size_t)p->a.HV, 0, p->a.HV);
        if (!c->shared_z && c->r) latent_values(p, m, w->b, w->head + i, key, n_keys);
        if (c->r) rows_values(&rows, t, m->zv_t, 0, latents, c->r);
    }
}

static QueryRows query_rows(const Plan *p, const Work *w, int i) {
    return (QueryRows){
        .a = &p->a, .b = w->b, .head = w->head + i, .pos = p->a.pos[w->b], .first = w->token};
}

static void work_open(const Plan *p, const Work *w, Memory *m) {
    m->block.n = m->part.n = w->n_heads * w->n_tokens;
    for (int i = 0; i < w->n_heads; i++) {
        RowBlock rows = head_rows(&m->block, i, w->n_tokens);
        rows_gather(&rows, query_rows(p, w, i), p->q);
    }
    m->block.panel = m->part.panel = p->panel;
}

static void split_run(const Plan *p, const Work *w, const RowBlock *state, Memory *m, int split) {
    int end = min_int(w->end, (split + 1) * SPLIT_K);
    rows_begin(state);
    for (int key = split * SPLIT_K; key < end; key += TILE_K)
        tile_run(p, w, state, m, key);
}

// Out of the latent values and into the output.
static void work_close(const Plan *p, const Work *w, const RowBlock *state, Memory *m) {
    const LowRankCache *c = p->c;
    size_t HV = (size_t)p->a.HV, latents = c->vs ? HV : 0;
    for (int i = 0; i < w->n_heads; i++) {
        RowBlock rows = head_rows(state, i, w->n_tokens);
        const float *bv = (const float *)c->bv + (size_t)(w->head + i) * HV * (size_t)c->ld_b;
        const float *bias = c->bias_v ? c->bias_v + (size_t)(w->head + i) * HV : NULL;
        for (size_t row = 0; row < (size_t)rows.n; row++) {
            float *to = m->result + row * HV;
            if (c->vs)
                memcpy(to, rows.o + row * (size_t)rows.width, HV * sizeof(float));
            else
                memset(to, 0, HV * sizeof(float));
            for (size_t j = 0; bias && j < HV; j++)
                to[j] += bias[j] * rows.l[row];
        }
        for (int j = 0; j < p->a.HV && c->r; j += TILE_K) {
            int n = min_int(TILE_K, p->a.HV - j);
            tile_transpose(m->bv_t, PANEL, bv + (size_t)(j * c->ld_b), TYPE_F32, (size_t)c->ld_b, n,
                           c->r);
            for (int k = 0; k < n; k += PANEL)
                gemm_tile(m->result + j + k, HV, rows.o + latents, (size_t)rows.width, 1,
                          m->bv_t + (size_t)(k * c->r), PANEL, rows.n, min_int(PANEL, n - k), c->r,
                          true);
        }
        rows.o = m->result;
        rows.width = p->a.HV;
        rows_scatter(&rows, query_rows(p, w, i), p->out, NULL);
    }
}

static void work_run(const Plan *p, const Work *w, Memory *m) {
    work_open(p, w, m);
    split_run(p, w, &m->block, m, 0);
    for (int split = 1; split < w->splits; split++) {
        split_run(p, w, &m->part, m, split);
        rows_fold(&m->block, &m->part);
    }
    work_close(p, w, &m->block, m);
}

static RowBlock stored_state(const Plan *p, const RowBlock *of, size_t split) {
    float *next = p->partial + split * p->partial_size;
    return state_carve(&next, of, p->rows_max);
}

static void stored_split_run(const Plan *p, size_t i, Memory *m) {
    const Work *w = &p->work[p->owner[i]];
    work_open(p, w, m);
    RowBlock state = stored_state(p, &m->block, i);
    split_run(p, w, &state, m, (int)(i - w->first));
}

static void stored_work_fold(const Plan *p, const Work *w, Memory *m) {
    m->block.n = w->n_heads * w->n_tokens;
    RowBlock sum = stored_state(p, &m->block, w->first);
    for (int split = 1; split < w->splits; split++) {
        RowBlock part = stored_state(p, &m->block, w->first + (size_t)split);
        rows_fold(&sum, &part);
    }
    work_close(p, w, &sum, m);
}

// Blocks of `tokens` tokens and `heads` heads, the longest first.
static void plan_work(Plan *p, int most, int tokens, int heads) {
    const SdpaArgs *a = &p->a;
    int blocks = (int)ceil_div((size_t)most, (size_t)tokens);
    int chunks = (int)ceil_div((size_t)a->NH, (size_t)heads);
    mem_free(p->work);
    p->work = mem_alloc((size_t)blocks * (size_t)a->B * (size_t)chunks, sizeof(Work));
    p->n_work = 0;
    p->n_splits = 0;
    p->rows_max = tokens * heads;
    for (int i = blocks * a->B * chunks - 1; i >= 0; i--) {
        Work w = {.b = i / chunks % a->B, .head = i % chunks * heads};
        w.token = i / chunks / a->B * tokens;
        w.n_tokens = min_int(tokens, a->n_new[w.b] - w.token);
        if (w.n_tokens <= 0) continue;
        w.n_heads = min_int(heads, a->NH - w.head);
        w.end = a->pos[w.b] + w.token + w.n_tokens;
        w.splits = (int)ceil_div((size_t)w.end, SPLIT_K);
        w.first = p->n_splits;
        p->n_splits += (size_t)w.splits;
        p->work[p->n_work++] = w;
    }
}

// Heads of one row share the loads of shared rows, so they stay together unless threads would idle:
// then splits are shared out among the threads first, and heads after them.
static void plan_make(Plan *p, int threads) {
    const SdpaArgs *a = &p->a;
    int most = 0;
    for (int b = 0; b < a->B; b++)
        most = max_int(most, a->n_new[b]);
    int tokens = max_int(1, min_int(most, ROWS)), heads = max_int(1, min_int(a->NH, ROWS / tokens));
    p->panel = panel_for(tokens);
    plan_work(p, most, tokens, heads);
    if (threads == 1 || p->n_work >= 2 * threads) return;
    size_t size = state_room(p->rows_max, p->width);
    bool store = p->n_splits > (size_t)p->n_work && p->n_splits * size <= STORED;
    size_t parts = store ? p->n_splits : (size_t)p->n_work;
    if (parts && parts < 2 * (size_t)threads) {
        size_t chunks = ceil_div(2 * (size_t)threads, parts);
        heads = (int)ceil_div((size_t)heads, chunks);
        plan_work(p, most, tokens, heads);
        size = state_room(p->rows_max, p->width);
    }
    if (!store) return;
    p->owner = mem_alloc(p->n_splits, sizeof(int));
    for (int i = 0; i < p->n_work; i++) {
        for (int s = 0; s < p->work[i].splits; s++)
            p->owner[p->work[i].first + (size_t)s] = i;
    }
    p->partial_size = size;
    p->partial = scratch_floats(p->n_splits * size);
}

// Runs in every thread of the team.
static void plan_run(const Plan *p) {
    Memory m = memory_alloc(p);
    if (p->partial) {
#pragma omp for schedule(dynamic, 1)
        for (size_t i = 0; i < p->n_splits; i++)
            stored_split_run(p, i, &m);
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < p->n_work; i++)
            stored_work_fold(p, &p->work[i], &m);
    } else {
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < p->n_work; i++)
            work_run(p, &p->work[i], &m);
    }
    free(m.floats);
}

void sdpa_lowrank_extend_cpu(floatX *out, const floatX *q, const LowRankCache *c,
                             const SdpaArgs *a) {
    Plan p = {.a = *a, .c = c, .out = (float *)out, .q = (const float *)q};
    p.a.NKV = a->NH;
    p.width = (c->vs ? a->HV : 0) + c->r;
    int threads = 1;
#ifdef _OPENMP
    threads = omp_get_max_threads();
#endif
    plan_make(&p, threads);
    if (p.n_work) {
#pragma omp parallel num_threads(threads)
        plan_run(&p);
    }
    free(p.partial);
    mem_free(p.owner);
    mem_free(p.work);
}
