// sdpa_rows.c - blocks of query rows: memory, gathering, walking over the tiles, writing results.
#include <math.h>
#include <stdlib.h>

#include "gpt/util.h"
#include "kernels/cpu/sdpa_tile.h"

float *scratch_floats(size_t n) {
    size_t bytes = round_up(n * sizeof(float) + 1, 64);
    float *p = aligned_alloc(64, bytes);
    if (!p) die("out of memory: %zu bytes asked for attention", bytes);
    return p;
}

static size_t padded(size_t n) {
    return round_up(n, 16);
}

size_t state_room(int rows, int width) {
    return padded((size_t)rows * (size_t)width) + 2 * padded((size_t)rows);
}

size_t rows_room(int rows, int HS, int width) {
    size_t n = (size_t)rows;
    return padded(n * (size_t)HS) + padded(n) + n * TILE_K + state_room(rows, width);
}

RowBlock rows_carve(float **next, int rows, int HS, int width) {
    size_t n = (size_t)rows;
    RowBlock b = {.n = rows, .HS = HS, .width = width};
    b.q = scratch_take(next, n * (size_t)HS);
    b.limit = (int *)(void *)scratch_take(next, n);
    b.scores = scratch_take(next, n * TILE_K);
    return state_carve(next, &b, rows);
}

RowBlock state_carve(float **next, const RowBlock *of, int rows) {
    RowBlock b = *of;
    b.o = scratch_take(next, (size_t)rows * (size_t)b.width);
    b.m = scratch_take(next, (size_t)rows);
    b.l = scratch_take(next, (size_t)rows);
    return b;
}

// Many rows read the values from panels; few read them where they lie, or as converted rows.
static void add_values(const RowBlock *b, const KvHead *kv, TileSpan t, const void *v) {
    if (b->panel == PANEL) {
        tile_panels(kv->v_tile, TILE_K, v, kv->type, kv->v_token, t.n_keys, kv->HV);
        rows_values(b, t, kv->v_tile, 0, 0, kv->HV);
    } else if (kv->type == TYPE_F32) {
        rows_values(b, t, v, kv->v_token, 0, kv->HV);
    } else {
        tile_rows(kv->v_tile, v, kv->type, kv->v_token, t.n_keys, kv->HV);
        rows_values(b, t, kv->v_tile, (size_t)kv->HV, 0, kv->HV);
    }
}

void rows_attend(const RowBlock *b, const KvHead *kv, int first_key, int end) {
    size_t size = kv->type == TYPE_BF16 ? 2 : 4;
    bool ahead = b->panel == PANEL;  // there is work behind which memory can hide
    for (int key = first_key; key < end; key += TILE_K) {
        TileSpan t = tile_span(b, key, end);
        const char *k = (const char *)kv->k + (size_t)key * kv->k_token * size;
        const char *v = (const char *)kv->v + (size_t)key * kv->v_token * size;
        tile_transpose(kv->kt, b->panel, k, kv->type, kv->k_token, t.n_keys, b->HS);
        if (ahead) tile_prefetch(v, kv->type, kv->v_token, t.n_keys, kv->HV);
        rows_scores(b, t, kv->kt);
        rows_softmax(b, t, kv->factor);
        if (ahead && key + TILE_K < end)
            tile_prefetch(k + TILE_K * kv->k_token * size, kv->type, kv->k_token,
                          min_int(TILE_K, end - key - TILE_K), b->HS);
        add_values(b, kv, t, v);
    }
}

void rows_gather(RowBlock *block, QueryRows r, const float *q) {
    const SdpaArgs *a = r.a;
    int G = group_size(a);
    size_t row_bytes = (size_t)a->HS * sizeof(float);
    block->panel = panel_for(block->n);
    for (int i = 0; i < block->n; i++) {
        int t = (r.first + i) / G, h = r.head * G + (r.first + i) % G;
        memcpy((float *)block->q + (size_t)i * (size_t)a->HS,
               q + (size_t)r.b * a->q_batch + (size_t)t * a->q_token + (size_t)h * a->q_head,
               row_bytes);
        ((int *)block->limit)[i] = r.pos + t + 1;
    }
}

void rows_scatter(const RowBlock *block, QueryRows r, float *out, float *lse) {
    const SdpaArgs *a = r.a;
    int G = group_size(a);
    for (int i = 0; i < block->n; i++) {
        int t = (r.first + i) / G, h = r.head * G + (r.first + i) % G;
        const float *o = block->o + (size_t)i * (size_t)block->width;
        float *to = out + (size_t)r.b * a->o_batch + (size_t)t * a->o_token + (size_t)h * a->o_head;
        float factor = 1.0f / block->l[i];
        for (int j = 0; j < a->HV; j++)
            to[j] = o[j] * factor;
        if (lse) {
            size_t row = ((size_t)r.b * (size_t)a->NH + (size_t)h) * (size_t)a->Tq + (size_t)t;
            lse[row] = block->m[i] + logf(block->l[i]);
        }
    }
}
