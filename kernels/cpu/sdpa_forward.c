// sdpa_forward.c - attention over whole sequences in training.
// A task is a block of query rows of one key/value head. The longest come first, so that the short
// ones fill the gaps at the end.
#include <stdlib.h>

#include "gpt/util.h"
#include "kernels/cpu/sdpa.h"
#include "kernels/cpu/sdpa_tile.h"

enum { ROWS = 192 };

typedef struct Forward {
    const SdpaArgs *a;
    float *out, *lse;
    const float *q, *k, *v;
    int blocks;  // of rows, per key/value head
} Forward;

static void task_run(const Forward *f, int64_t task, RowBlock *block, KvHead *kv) {
    const SdpaArgs *a = f->a;
    int pairs = a->B * a->NKV, pair = (int)(task % pairs);
    int first = (f->blocks - 1 - (int)(task / pairs)) * ROWS;
    QueryRows r = {.a = a, .b = pair / a->NKV, .head = pair % a->NKV, .first = first};
    block->n = min_int(ROWS, a->Tq * group_size(a) - first);
    kv->k = f->k + (size_t)r.b * a->k_batch + (size_t)r.head * a->k_head;
    kv->v = f->v + (size_t)r.b * a->v_batch + (size_t)r.head * a->v_head;
    rows_gather(block, r, f->q);
    rows_begin(block);
    rows_attend(block, kv, 0, block->limit[block->n - 1]);
    rows_scatter(block, r, f->out, f->lse);
}

void sdpa_forward_cpu(floatX *out, float *lse, const floatX *q, const floatX *k, const floatX *v,
                      const SdpaArgs *a) {
    Forward f = {.a = a,
                 .out = (float *)out,
                 .lse = lse,
                 .q = (const float *)q,
                 .k = (const float *)k,
                 .v = (const float *)v};
    f.blocks = (int)ceil_div((size_t)a->Tq * (size_t)group_size(a), ROWS);
    int64_t tasks = (int64_t)f.blocks * a->B * a->NKV;
    float factor[TILE_K];
    for (int i = 0; i < TILE_K; i++)
        factor[i] = a->scale;
#pragma omp parallel
    {
        float *memory = scratch_floats(rows_room(ROWS, a->HS, a->HV) + (size_t)a->HS * TILE_K +
                                       round_up((size_t)a->HV, PANEL) * TILE_K);
        float *next = memory;
        RowBlock block = rows_carve(&next, ROWS, a->HS, a->HV);
        KvHead kv = {.type = TYPE_F32,
                     .k_token = a->k_token,
                     .v_token = a->v_token,
                     .HV = a->HV,
                     .factor = factor};
        kv.kt = scratch_take(&next, (size_t)a->HS * TILE_K);
        kv.v_tile = scratch_take(&next, round_up((size_t)a->HV, PANEL) * TILE_K);
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks; task++)
            task_run(&f, task, &block, &kv);
        free(memory);
    }
}
