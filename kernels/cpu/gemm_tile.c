// gemm_tile.c - small products of operands that already lie in the cache: nothing is packed.
#include "gpt/util.h"
#include "kernels/cpu/gemm_kernel.h"

typedef struct Tile {
    float *c;
    size_t ldc;
    const float *a;
    size_t a_row, a_col;
    const float *b;
    size_t ldb;
    int K;
    int lanes;  // columns wanted of the last vector
    bool accumulate;
} Tile;

static inline VecF load_lanes(const float *p, int n) {
    VecF v = {0};
    memcpy(&v, p, (size_t)n * sizeof(float));
    return v;
}

ALWAYS_INLINE void tile_step(VecF *acc, const float *a, size_t a_row, const VecF *b, int rows,
                             int nv) {
    UNROLL for (int i = 0; i < rows; i++) {
        VecF ai = vec_set(a[(size_t)i * a_row]);
        UNROLL for (int j = 0; j < nv; j++) acc[i * nv + j] += ai * b[j];
    }
}

// rows x (nv vectors). Only a single vector (nv = 1) may be partial.
ALWAYS_INLINE void tile_kernel(const Tile *t, int rows, int nv) {
    VecF acc[2 * MR], bv[8];
    const float *a = t->a, *b = t->b;
    UNROLL for (int i = 0; i < rows * nv; i++) acc[i] = (VecF){0};
    // A whole vector may be read where it only runs into the next row of B, so in all but the last.
    int whole = t->K;
    if (nv == 1 && t->lanes < LANES) {
        whole = t->ldb + (size_t)t->lanes >= LANES ? max_int(t->K - 1, 0) : 0;
    }
    for (int k = 0; k < whole; k++) {
        UNROLL for (int j = 0; j < nv; j++) bv[j] = vec_load(b + j * LANES);
        tile_step(acc, a, t->a_row, bv, rows, nv);
        a += t->a_col;
        b += t->ldb;
    }
    if (nv == 1) {
        for (int k = whole; k < t->K; k++) {
            bv[0] = load_lanes(b, t->lanes);
            tile_step(acc, a, t->a_row, bv, rows, 1);
            a += t->a_col;
            b += t->ldb;
        }
    }
    UNROLL for (int i = 0; i < rows; i++) {
        float *c = t->c + (size_t)i * t->ldc;
        if (nv == 1 && t->lanes < LANES) {
            VecF sum = acc[i];
            if (t->accumulate) sum += load_lanes(c, t->lanes);
            memcpy(c, &sum, (size_t)t->lanes * sizeof(float));
        } else {
            UNROLL for (int j = 0; j < nv; j++) {
                VecF sum = acc[i * nv + j];
                if (t->accumulate) sum += vec_load(c + j * LANES);
                vec_store(c + j * LANES, sum);
            }
        }
    }
}

// X(rows, vectors). Few rows take more vectors, so that enough sums run side by side.
#define TILE_PAIR(X, rows) X(rows, 1) X(rows, 2)
#define TILE_KERNELS_6(X)                                                                          \
    TILE_PAIR(X, 1)                                                                                \
    X(1, 8) TILE_PAIR(X, 2) X(2, 4) TILE_PAIR(X, 3) TILE_PAIR(X, 4) TILE_PAIR(X, 5) TILE_PAIR(X, 6)
#if MR == 12
    #define TILE_KERNELS(X)                                                                        \
        TILE_KERNELS_6(X)                                                                          \
        X(3, 4)                                                                                    \
        X(4, 4)                                                                                    \
        TILE_PAIR(X, 7) TILE_PAIR(X, 8) TILE_PAIR(X, 9) TILE_PAIR(X, 10) TILE_PAIR(X, 11)          \
            TILE_PAIR(X, 12)
#else
    #define TILE_KERNELS(X) TILE_KERNELS_6(X)
#endif

#define TILE_DEFINE(rows, nv)                                                                      \
    static void tile_##rows##x##nv(const Tile *t) {                                                \
        tile_kernel(t, rows, nv);                                                                  \
    }
TILE_KERNELS(TILE_DEFINE)

typedef void TileKernel(const Tile *t);
#define TILE_ROW(rows, nv) [rows][nv] = tile_##rows##x##nv,
static TileKernel *const kernels[MR + 1][9] = {TILE_KERNELS(TILE_ROW)};

void gemm_tile(float *c, size_t ldc, const float *a, size_t a_row, size_t a_col, const float *b,
               size_t ldb, int M, int N, int K, bool accumulate) {
    if (M <= 0 || N <= 0) return;
    int height = (int)ceil_div((size_t)M, ceil_div((size_t)M, MR));
    for (int j = 0; j < N;) {
        int left = (N - j) / LANES, nv = 1;  // whole vectors left
        for (int v = 2; v <= min_int(left, 8); v++) {
            if (kernels[height][v]) nv = v;
        }
        Tile t = {.ldc = ldc,
                  .a_row = a_row,
                  .a_col = a_col,
                  .b = b + j,
                  .ldb = ldb,
                  .K = max_int(K, 0),
                  .lanes = min_int(LANES, N - j),
                  .accumulate = accumulate};
        for (int i = 0; i < M; i += height) {
            int rows = min_int(height, M - i);
            t.c = c + (size_t)i * ldc + j;
            t.a = a + (size_t)i * a_row;
            kernels[rows][nv](&t);
        }
        j += nv * LANES;
    }
}
