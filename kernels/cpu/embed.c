// embed.c - token and position embeddings.
// The backward pass groups the rows by token with a counting sort, so that each row of dwte has one
// writer, which adds in the order of the rows: no atomics, same bits on any number of threads.
#include <string.h>

#include "gpt/util.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/vec.h"

void embed_forward_cpu(floatX *out, const int *ids, const floatX *wte, const floatX *wpe,
                       int wpe_rows, const int *pos, int B, int T, int C_) {
    size_t rows = (size_t)B * (size_t)T, C = (size_t)C_;
#pragma omp parallel for schedule(static) if (rows * C > SERIAL_ELEMENTS)
    for (size_t row = 0; row < rows; row++) {
        float *y = (float *)out + row * C;
        const float *token = (const float *)wte + (size_t)ids[row] * C;
        if (!wpe) {
            memcpy(y, token, C * sizeof(float));
            continue;
        }
        size_t t = row % (size_t)T + (pos ? (size_t)pos[row / (size_t)T] : 0);
        const float *place = (const float *)wpe + min_size(t, (size_t)wpe_rows - 1) * C;
        for (size_t i = 0; i < C; i += LANES)
            vec_put(y + i, vec_get(token + i, C - i) + vec_get(place + i, C - i), C - i);
    }
}

// Rows grouped by token. Group g holds rows order[start[g]] .. order[start[g+1] - 1], ascending.
typedef struct Groups {
    int n;       // tokens that occur
    int *token;  // (n) ascending
    int *start;  // (n + 1)
    int *order;  // (N)
    int *memory;
} Groups;

static Groups group_rows(const int *ids, int N) {
    int V = 0;
    for (int i = 0; i < N; i++)
        V = max_int(V, ids[i] + 1);
    Groups g = {0};
    g.memory = mem_alloc(2 * (size_t)V + 1 + (size_t)N, sizeof(int));
    int *next = g.memory;  // (V) counts, then where the next row of each token goes
    g.start = next;        // entries are overwritten behind the reading position
    g.token = next + V + 1;
    g.order = g.token + V;
    for (int i = 0; i < N; i++)
        next[ids[i]]++;
    for (int v = 0, sum = 0; v < V; v++) {
        int count = next[v];
        next[v] = sum;
        sum += count;
    }
    for (int i = 0; i < N; i++)
        g.order[next[ids[i]]++] = i;
    for (int v = 0, begin = 0; v < V; v++) {
        int end = next[v];
        if (end == begin) continue;
        g.token[g.n] = v;
        g.start[g.n++] = begin;
        begin = end;
    }
    g.start[g.n] = N;
    return g;
}

// A token that fills more rows than this is shared out by columns.
static int heavy_rows(int N) {
    return max_int(256, N / 64);
}

static void add_groups(float *dwte, const float *dout, const Groups *g, int N, size_t C) {
    enum { COLUMNS = 4 * LANES };
    size_t columns = ceil_div(C, COLUMNS);
    int heavy = heavy_rows(N);
#pragma omp parallel if ((size_t)N * C > SERIAL_ELEMENTS)
    {
        for (int i = 0; i < g->n; i++) {
            int n = g->start[i + 1] - g->start[i];
            if (n <= heavy) continue;
            float *dst = dwte + (size_t)g->token[i] * C;
#pragma omp for schedule(static) nowait
            for (size_t c = 0; c < columns; c++)
                rows_add(dst, dout, C, g->order + g->start[i], (size_t)n, c * COLUMNS,
                         min_size((c + 1) * COLUMNS, C));
        }
#pragma omp for schedule(dynamic, 8)
        for (int i = 0; i < g->n; i++) {
            int n = g->start[i + 1] - g->start[i];
            if (n > heavy) continue;
            rows_add(dwte + (size_t)g->token[i] * C, dout, C, g->order + g->start[i], (size_t)n, 0,
                     C);
        }
    }
}

void embed_backward_cpu(float *dwte, float *dwpe, const floatX *dout_, const int *ids, int B, int T,
                        int C_) {
    const float *dout = (const float *)dout_;
    size_t C = (size_t)C_, sequence = (size_t)T * C;
    int N = B * T;
    if (dwte) {
        Groups g = group_rows(ids, N);
        add_groups(dwte, dout, &g, N, C);
        mem_free(g.memory);
    }
    if (dwpe) {
#pragma omp parallel for schedule(static) if ((size_t)B * sequence > SERIAL_ELEMENTS)
        for (int t = 0; t < T; t++)
            rows_add(dwpe + (size_t)t * C, dout + (size_t)t * C, sequence, NULL, (size_t)B, 0, C);
    }
}
