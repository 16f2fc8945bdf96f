// sdpa_extend.c - attention of new tokens over a cache: prefill, chunked prefill, decode.
// The keys of a row are cut into splits of fixed size, each summed by itself, then folded in order.
// Who sums a split does not matter: one thread walks through all of them when there are rows
// enough, else the splits of a long cache go to several threads. Either way the bits of a row
// follow from its own position and cache, not from its neighbours, the chunking or the number of
// threads.
#include <stdlib.h>
#ifdef _OPENMP
    #include <omp.h>
#endif

#include "gpt/util.h"
#include "kernels/cpu/sdpa.h"
#include "kernels/cpu/sdpa_tile.h"

enum { ROWS = 192 };                     // most rows of a block
static const size_t STORED = 16u << 20;  // most floats of stored partial results

// A block of rows of one key/value head, and where its partial results lie.
typedef struct Work {
    QueryRows rows;
    int n, end;    // rows; keys that the last one sees
    int splits;    // of the keys
    size_t first;  // index of its first split among all
} Work;

typedef struct Extend {
    const SdpaArgs *a;
    float *out;
    const float *q;
    const char *k, *v;
    size_t kv_size;
    Work *work;
    int n_work;
    size_t n_splits;
    int rows_max;    // of a block
    int *owner;      // (n_splits) index of the work that a split belongs to
    float *partial;  // (n_splits) states; NULL when every block folds by itself
    size_t partial_size;
} Extend;

// Scratch of one thread.
typedef struct Memory {
    float *floats;
    RowBlock block, part;  // the same rows, two states
    KvHead kv;
} Memory;

static Memory memory_alloc(const SdpaArgs *a, int rows, const float *factor) {
    size_t kt = (size_t)a->HS * TILE_K, v = round_up((size_t)a->HV, PANEL) * TILE_K;
    Memory m = {.kv = {.type = a->kv_type,
                       .k_token = a->k_token,
                       .v_token = a->v_token,
                       .HV = a->HV,
                       .factor = factor}};
    float *next = m.floats =
        scratch_floats(rows_room(rows, a->HS, a->HV) + state_room(rows, a->HV) + kt + v);
    m.block = rows_carve(&next, rows, a->HS, a->HV);
    m.part = state_carve(&next, &m.block, rows);
    m.kv.kt = scratch_take(&next, kt);
    m.kv.v_tile = scratch_take(&next, v);
    return m;
}

// Points the scratch at a block: rows gathered, keys and values of its head.
static void block_open(const Extend *e, const Work *w, Memory *m) {
    const SdpaArgs *a = e->a;
    m->block.n = w->n;
    rows_gather(&m->block, w->rows, e->q);
    m->part.n = w->n;
    m->part.panel = m->block.panel;
    m->kv.k =
        e->k + ((size_t)w->rows.b * a->k_batch + (size_t)w->rows.head * a->k_head) * e->kv_size;
    m->kv.v =
        e->v + ((size_t)w->rows.b * a->v_batch + (size_t)w->rows.head * a->v_head) * e->kv_size;
}

static void split_run(const RowBlock *state, const Memory *m, int split, int end) {
    rows_begin(state);
    rows_attend(state, &m->kv, split * SPLIT_K, min_int(end, (split + 1) * SPLIT_K));
}

static void block_run(const Extend *e, const Work *w, Memory *m) {
    block_open(e, w, m);
    split_run(&m->block, m, 0, w->end);
    for (int split = 1; split < w->splits; split++) {
        split_run(&m->part, m, split, w->end);
        rows_fold(&m->block, &m->part);
    }
    rows_scatter(&m->block, w->rows, e->out, NULL);
}

// A state that lies in the partial results.
static RowBlock stored_state(const Extend *e, const RowBlock *of, size_t split) {
    float *next = e->partial + split * e->partial_size;
    return state_carve(&next, of, e->rows_max);
}

static void stored_split_run(const Extend *e, size_t i, Memory *m) {
    const Work *w = &e->work[e->owner[i]];
    block_open(e, w, m);
    RowBlock state = stored_state(e, &m->block, i);
    split_run(&state, m, (int)(i - w->first), w->end);
}

static void stored_block_fold(const Extend *e, const Work *w, Memory *m) {
    m->block.n = w->n;
    RowBlock sum = stored_state(e, &m->block, w->first);
    for (int split = 1; split < w->splits; split++) {
        RowBlock part = stored_state(e, &m->block, w->first + (size_t)split);
        rows_fold(&sum, &part);
    }
    rows_scatter(&sum, w->rows, e->out, NULL);
}

// Blocks of all rows of the batch that have new tokens; the longest first.
static void plan(Extend *e) {
    const SdpaArgs *a = e->a;
    int G = group_size(a), most = 1;
    for (int b = 0; b < a->B; b++)
        most = max_int(most, a->n_new[b] * G);
    int rows_max = e->rows_max = min_int(most, ROWS);
    int per_head = (int)ceil_div((size_t)most, (size_t)rows_max);
    e->work = mem_alloc((size_t)a->B * (size_t)a->NKV * (size_t)per_head, sizeof(Work));
    for (int block = per_head - 1; block >= 0; block--) {
        for (int pair = 0; pair < a->B * a->NKV; pair++) {
            int b = pair / a->NKV, rows = a->n_new[b] * G, first = block * rows_max;
            if (first >= rows) continue;
            Work w = {.rows = {.a = a, .b = b, .head = pair % a->NKV, .pos = a->pos[b]}};
            w.rows.first = first;
            w.n = min_int(rows_max, rows - first);
            w.end = a->pos[b] + (first + w.n - 1) / G + 1;
            w.splits = (int)ceil_div((size_t)w.end, SPLIT_K);
            w.first = e->n_splits;
            e->n_splits += (size_t)w.splits;
            e->work[e->n_work++] = w;
        }
    }
}

// Splits are worth storing when blocks alone would leave threads idle.
static void plan_splits(Extend *e, int threads) {
    size_t size = state_room(e->rows_max, e->a->HV);
    if (threads == 1 || e->n_work >= 4 * threads) return;
    if (e->n_splits == (size_t)e->n_work || e->n_splits * size > STORED) return;
    e->owner = mem_alloc(e->n_splits, sizeof(int));
    for (int i = 0; i < e->n_work; i++) {
        for (int s = 0; s < e->work[i].splits; s++)
            e->owner[e->work[i].first + (size_t)s] = i;
    }
    e->partial_size = size;
    e->partial = scratch_floats(e->n_splits * size);
}

// Runs in every thread of the team.
static void extend_run(const Extend *e, const float *factor) {
    Memory m = memory_alloc(e->a, e->rows_max, factor);
    if (e->partial) {
#pragma omp for schedule(dynamic, 1)
        for (size_t i = 0; i < e->n_splits; i++)
            stored_split_run(e, i, &m);
#pragma omp for schedule(static)
        for (int i = 0; i < e->n_work; i++)
            stored_block_fold(e, &e->work[i], &m);
    } else {
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < e->n_work; i++)
            block_run(e, &e->work[i], &m);
    }
    free(m.floats);
}

void sdpa_extend_cpu(floatX *out, const floatX *q, const void *k, const void *v,
                     const SdpaArgs *a) {
    Extend e = {.a = a,
                .out = (float *)out,
                .q = (const float *)q,
                .k = k,
                .v = v,
                .kv_size = a->kv_type == TYPE_BF16 ? 2 : 4};
    plan(&e);
    float factor[TILE_K];
    for (int i = 0; i < TILE_K; i++)
        factor[i] = a->scale;
    int threads = 1;
#ifdef _OPENMP
    threads = omp_get_max_threads();
#endif
    plan_splits(&e, threads);
    if (e.n_work) {
#pragma omp parallel num_threads(threads)
        extend_run(&e, factor);
    }
    free(e.partial);
    mem_free(e.owner);
    mem_free(e.work);
}
