// gemm.c - blocking and threads of matrix products (see gemm.h; kernels in gemm_kernel.c).
// Chunks of both operands are packed into scratch memory of bounded size, then tiles of C go to the
// threads as they come free. Each element of C is the sum of its K blocks in order, whoever adds
// them, so the cut into chunks and tiles follows the number of threads without touching the bits.
#include "kernels/cpu/gemm.h"

#include <math.h>
#include <stdlib.h>
#ifdef _OPENMP
    #include <omp.h>
#endif

#include "gpt/util.h"
#include "kernels/cpu/gemm_kernel.h"

enum {
    K_CHUNK = 16 * KC,        // words
    A_CHUNK_WORDS = 2 << 20,  // 8 MiB
    B_CHUNK_WORDS = 4 << 20,  // 16 MiB
    TILE_STRIPS = 120 / MR,   // KC words of them fill a part of a second-level cache
    TILE_PANELS = 256 / NR,
    SERIAL_WORK = 1 << 19,  // below it starting threads costs more than it gives (see work_of)
};

typedef struct Plan {
    const GemmArgs *g;
    int threads;
    size_t words;             // K in words
    int height;               // rows of a strip
    size_t m_chunk, n_chunk;  // rows and columns packed at a time
    size_t k_chunk;           // words packed at a time
    size_t scratch_bytes;
    void *scratch;
    char *a_pack, *b_pack;  // parts of scratch, b_pack unused with panels
} Plan;

static int available_threads(void) {
#ifdef _OPENMP
    return omp_in_parallel() ? 1 : omp_get_max_threads();
#else
    return 1;
#endif
}

static size_t even_chunk(size_t n, size_t limit, size_t multiple) {
    limit = limit < multiple ? multiple : limit;
    return round_up(ceil_div(n, ceil_div(n, limit)), multiple);
}

// Rows are spread evenly over the strips, so that 8 rows are 4 + 4 and not 6 + 2.
static Plan plan_make(const GemmArgs *g, int threads) {
    Plan p = {.g = g, .threads = threads, .words = gemm_words(max_int(g->K, 0), g->type)};
    size_t M = (size_t)g->M, N = (size_t)g->N;
    p.height = (int)ceil_div(M, ceil_div(M, MR));
    p.k_chunk = p.words > KC ? even_chunk(p.words, K_CHUNK, KC) : (size_t)max_int((int)p.words, 1);
    size_t per_row = p.k_chunk * a_per_word(g->type);
    p.m_chunk = even_chunk(M, A_CHUNK_WORDS / per_row, (size_t)p.height);
    p.n_chunk = g->panels ? N : even_chunk(N, B_CHUNK_WORDS / p.k_chunk, NR);
    size_t a_bytes = round_up(p.m_chunk * per_row * 4, 64);
    p.scratch_bytes = a_bytes + (g->panels ? 0 : p.n_chunk * p.k_chunk * 4);
    // malloc because it hands the same block back at the next call without new pages to clear;
    // glibc's aligned_alloc before 2.38 doesn't.
    p.scratch = malloc(p.scratch_bytes + 64);
    if (!p.scratch) die("out of memory: a matrix product needs %zu bytes", p.scratch_bytes);
    p.a_pack = (char *)round_up((uintptr_t)p.scratch, 64);
    p.b_pack = p.a_pack + a_bytes;
    return p;
}

// A cut of strips x panels into rows x cols tiles of nearly equal size.
typedef struct Grid {
    int rows, cols;
} Grid;

// The cut that leaves the last thread busy for the shortest time. Smaller tiles balance better but
// read their operands more often: a tile costs as much as its area plus a part of its edges. Tried
// are numbers of tiles at or just below multiples of the number of threads.
static Grid grid_make(int strips, int panels, int threads) {
    Grid least = {(int)ceil_div((size_t)strips, TILE_STRIPS),
                  (int)ceil_div((size_t)panels, strips == 1 ? 4 : TILE_PANELS)};
    if (threads == 1 || least.rows * (int64_t)least.cols >= 16 * (int64_t)threads) return least;
    Grid best = least;
    double best_cost = INFINITY;
    for (int r = least.rows; r <= min_int(strips, 4 * least.rows); r++) {
        int turns = (int)ceil_div((size_t)r * (size_t)least.cols, (size_t)threads);
        for (int k = turns; k < turns + 4; k++) {
            int c = min_int(panels, max_int(least.cols, k * threads / r));
            double rounds = (double)ceil_div((size_t)r * (size_t)c, (size_t)threads);
            double h = (double)strips / r, w = (double)panels / c;
            double cost = rounds * (h * w + 0.1 * (h + w) + 1);
            if (cost < best_cost) {
                best_cost = cost;
                best = (Grid){r, c};
            }
        }
    }
    return best;
}

static int cut(int n, int parts, int i) {
    return (int)((int64_t)n * i / parts);
}

// The block, or of a symmetric C (n0 columns to the left of the block, m0 rows above) for each
// panel the strips that reach the diagonal or lie below it.
static void block_run(const GemmArgs *g, GemmBlock t, size_t m0, size_t n0) {
    if (!g->symmetric) {
        gemm_block(&t);
        return;
    }
    int first = t.s0, last = t.p1;
    for (; t.p0 < last; t.p0++) {
        size_t column = n0 + (size_t)t.p0 * NR;
        int diagonal = column > m0 ? (int)((column - m0) / (size_t)t.height) : 0;
        t.s0 = max_int(first, diagonal);
        t.p1 = t.p0 + 1;
        if (t.s0 < t.s1) gemm_block(&t);
    }
}

// Upper triangle = lower triangle, in squares that a first-level cache holds. Shared by the team.
static void mirror(float *c, size_t ldc, int n) {
    enum { SIDE = 32 };
#pragma omp for schedule(dynamic, 1)
    for (int i0 = 0; i0 < n; i0 += SIDE) {
        for (int j0 = i0; j0 < n; j0 += SIDE) {
            for (int i = i0; i < min_int(i0 + SIDE, n); i++) {
                for (int j = max_int(j0, i + 1); j < min_int(j0 + SIDE, n); j++)
                    c[(size_t)i * ldc + (size_t)j] = c[(size_t)j * ldc + (size_t)i];
            }
        }
    }
}

// One tile. With few strips B is what costs: then a panel is read in one go, from end to end.
static void tile_run(const Plan *p, GemmBlock t, size_t m0, size_t n0, size_t k0) {
    const GemmArgs *g = p->g;
    int strips = t.s1 - t.s0, last = t.p1, step = strips > 4 ? last - t.p0 : strips > 1 ? 1 : 4;
    for (; t.p0 < last; t.p0 = t.p1) {
        t.p1 = min_int(last, t.p0 + step);
        size_t k = 0;
        do {
            bool first = k0 + k == 0;
            t.k0 = k;
            t.kw = min_size(KC, t.a_words - k);
            t.load = g->accumulate || !first;
            t.bias = first && g->bias && (size_t)g->n_bias > n0 ? g->bias + n0 : NULL;
            t.n_bias = t.bias ? g->n_bias - (int)n0 : 0;
            block_run(g, t, m0, n0);
            k += KC;
        } while (k < t.a_words);
    }
}

// All tiles of one chunk of C: rows from m0, columns from n0, words from k0. Shared by the team.
static void tiles_run(const Plan *p, size_t m0, size_t n0, size_t k0) {
    const GemmArgs *g = p->g;
    size_t words = min_size(p->k_chunk, p->words - k0);
    GemmBlock block = {.type = g->type,
                       .a = p->a_pack,
                       .a_words = words,
                       .height = p->height,
                       .M = (int)min_size(p->m_chunk, (size_t)g->M - m0),
                       .N = (int)min_size(p->n_chunk, (size_t)g->N - n0),
                       .c = g->c + m0 * g->ldc + n0,
                       .ldc = g->ldc,
                       .alpha = g->alpha};
    if (g->panels) {
        block.b = (const char *)g->panels + k0 * NR * 4;
        block.b_words = p->words;
    } else {
        block.b = p->b_pack;
        block.b_words = words;
    }
    int strips = (int)ceil_div((size_t)block.M, (size_t)p->height);
    int panels = (int)ceil_div((size_t)block.N, NR);
    Grid grid = grid_make(strips, panels, p->threads);
    int n_tiles = grid.rows * grid.cols;
#pragma omp for schedule(dynamic, 1)
    for (int i = 0; i < n_tiles; i++) {
        GemmBlock t = block;
        t.s0 = cut(strips, grid.rows, i % grid.rows);
        t.s1 = cut(strips, grid.rows, i % grid.rows + 1);
        t.p0 = cut(panels, grid.cols, i / grid.rows);
        t.p1 = cut(panels, grid.cols, i / grid.rows + 1);
        tile_run(p, t, m0, n0, k0);
    }
}

// K values from word k0 on.
static void pack_b(const Plan *p, size_t n0, size_t k0, int K) {
    const GemmArgs *g = p->g;
    size_t k = k0 * (g->type == GEMM_BF16 ? 2 : 1);
    StripPack b = {.src = g->b + n0 * g->b_col + k * g->b_row,
                   .row = g->b_col,
                   .col = g->b_row,
                   .n = (int)min_size(p->n_chunk, (size_t)g->N - n0),
                   .K = K,
                   .width = NR,
                   .pad = true,
                   .form = b_form(g->type)};
    gemm_pack_strips(p->b_pack, &b);
}

static void pack_a(const Plan *p, size_t m0, size_t k0, int K) {
    const GemmArgs *g = p->g;
    size_t k = k0 * (g->type == GEMM_BF16 ? 2 : 1);
    StripPack a = {.src = g->a + m0 * g->a_row + k * g->a_col,
                   .row = g->a_row,
                   .col = g->a_col,
                   .n = (int)min_size(p->m_chunk, (size_t)g->M - m0),
                   .K = K,
                   .width = p->height,
                   .form = a_form(g->type)};
    gemm_pack_strips(p->a_pack, &a);
}

// Run by every thread of the team. The barrier at the end of tiles_run keeps the scratch until
// everyone has read it.
static void plan_run(const Plan *p) {
    const GemmArgs *g = p->g;
    size_t pair = g->type == GEMM_BF16 ? 2 : 1;
    for (size_t n0 = 0; n0 < (size_t)g->N; n0 += p->n_chunk) {
        size_t k0 = 0;
        do {
            int K = g->K > 0 ? (int)min_size(p->k_chunk * pair, (size_t)g->K - k0 * pair) : 0;
            if (K && !g->panels) pack_b(p, n0, k0, K);
            for (size_t m0 = 0; m0 < (size_t)g->M; m0 += p->m_chunk) {
                if (K) pack_a(p, m0, k0, K);
#pragma omp barrier
                tiles_run(p, m0, n0, k0);
            }
            k0 += p->k_chunk;
        } while (k0 < p->words);
    }
    if (g->symmetric) mirror(g->c, g->ldc, g->M);
}

// Multiply-adds; with few rows, reading B takes as long as multiplying some would.
static double work_of(const GemmArgs *g) {
    return (double)g->N * g->K * max_int(g->M, 8);
}

void gemm(const GemmArgs *g) {
    if (g->M <= 0 || g->N <= 0) return;
    int threads = work_of(g) < SERIAL_WORK ? 1 : available_threads();
    Plan p = plan_make(g, threads);
#pragma omp parallel num_threads(threads)
    plan_run(&p);
    free(p.scratch);
}

void gemm_batched(const GemmArgs *g, int batch, size_t a_stride, size_t b_stride, size_t c_stride) {
    int threads = available_threads();
    double rounds = (double)ceil_div((size_t)max_int(batch, 1), (size_t)threads);
    double work = work_of(g);
    // Whole products to each thread unless that leaves more than a fifth of them idle and one
    // product is enough for all.
    bool outer = batch > rounds * threads * 0.8 || work < 8.0 * SERIAL_WORK;
    if (work * batch < SERIAL_WORK) threads = 1;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (outer && threads > 1)
    for (int i = 0; i < batch; i++) {
        GemmArgs one = *g;
        one.a += (size_t)i * a_stride;
        if (g->panels)
            one.panels = (const char *)g->panels + (size_t)i * b_stride;
        else
            one.b += (size_t)i * b_stride;
        one.c += (size_t)i * c_stride;
        gemm(&one);
    }
}
