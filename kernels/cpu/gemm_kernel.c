// gemm_kernel.c - register kernels over packed strips (see gemm_kernel.h).
// One template, instantiated for every number of rows, so that an edge tile sums in the same order
// as a full one and one row costs one row.
#include "kernels/cpu/gemm_kernel.h"

#include "gpt/util.h"

typedef struct Micro {
    const char *a, *b;   // first words
    size_t panel_bytes;  // between panels, for kernels that take several
    size_t kw;
    float *c;
    size_t ldc;
    float alpha;
    bool load;
    const float *bias;  // one float per column, or NULL
} Micro;

enum { NV = NR / LANES, MAX_GROUP = 4, MAX_VECTORS = MAX_GROUP * NV, FETCH_AHEAD = 2048 };
typedef float FloatU __attribute__((aligned(4), may_alias));

// acc[i][j] += a[i] * b[j] for one word of a strip.
ALWAYS_INLINE void add_products(VecF *acc, const char *a, const VecF *b, int rows, int nv) {
    UNROLL for (int i = 0; i < rows; i++) {
        VecF ai = vec_set(((const FloatU *)a)[i]);
        UNROLL for (int j = 0; j < nv; j++) acc[i * nv + j] += ai * b[j];
    }
}

// The same for two K values at once. Without the instruction for pairs the halves of b are widened
// one after the other, to need no more registers than fp32.
ALWAYS_INLINE void add_pair_products(VecF *acc, const char *a, const VecU *b, int rows, int nv) {
#if A_PAIRS
    UNROLL for (int i = 0; i < rows; i++) {
        VecU ai = vec_set_word(((const WordU *)a)[i]);
        UNROLL for (int j = 0; j < nv; j++) {
            acc[i * nv + j] = vec_dot_bf16(acc[i * nv + j], ai, b[j]);
        }
    }
#else
    VecF half[MAX_VECTORS];
    UNROLL for (int j = 0; j < nv; j++) half[j] = (VecF)(b[j] << 16);
    add_products(acc, a, half, rows, nv);
    UNROLL for (int j = 0; j < nv; j++) half[j] = (VecF)(b[j] & 0xffff0000u);
    add_products(acc, a + rows * 4, half, rows, nv);
#endif
}

// Keeps a product from being fused with a later sum, which compilers do in one kernel but not in
// another; the bits must not depend on the kernel.
#define ROUND_HERE(vec) __asm__("" : "+m"(vec))
// Keeps the compiler from loading ahead across steps, which would spill sums to the stack.
#define SCHEDULE_FENCE() __asm__ volatile("" ::: "memory")

// One word of K.
ALWAYS_INLINE void micro_step(VecF *acc, const char *a, const char *b, size_t panel_bytes, int rows,
                              int panels, GemmType type) {
    int nv = panels * NV;
    // With a few rows the units wait for B from memory, yet a step is too long for the processor to
    // see far ahead by itself; with one or two rows it does.
    bool fetch = rows > 2 && rows * 3 <= MR * 2;
    VecU words[MAX_VECTORS];
    VecF bv[MAX_VECTORS];
    UNROLL for (int j = 0; j < nv; j++) {
        words[j] = vec_load_words(b + (size_t)(j / NV) * panel_bytes + (j % NV) * LANES * 4);
        bv[j] = (VecF)words[j];
        if (fetch && j * LANES % 16 == 0) {
            __builtin_prefetch(b + (size_t)(j / NV) * panel_bytes + (j % NV) * LANES * 4 +
                               FETCH_AHEAD);
        }
    }
    if (type == GEMM_BF16)
        add_pair_products(acc, a, words, rows, nv);
    else
        add_products(acc, a, bv, rows, nv);
}

// Several panels at once where few rows would leave the multiply-add units waiting for their own
// results. Four steps to a turn where a step is short, to spend fewer instructions on the loop.
ALWAYS_INLINE void micro_kernel(const Micro *m, int rows, int panels, GemmType type) {
    VecF acc[MR * NV];
    int nv = panels * NV;
    UNROLL for (int i = 0; i < rows * nv; i++) acc[i] = (VecF){0};
    // C comes from the cache while the sums are made.
    UNROLL for (int i = 0; i < rows; i++) __builtin_prefetch(m->c + (size_t)i * m->ldc, 1);
    const char *a = m->a, *b = m->b;
    size_t a_step = (size_t)rows * 4 * a_per_word(type), k = m->kw;
    size_t turn = LANES > 4 && panels == 1 && (type == GEMM_F32 || A_PAIRS) ? 4 : 1;
    for (; k >= turn; k -= turn) {
        UNROLL for (size_t u = 0; u < turn; u++) {
            micro_step(acc, a + u * a_step, b + u * NR * 4, m->panel_bytes, rows, panels, type);
            SCHEDULE_FENCE();
        }
        a += turn * a_step;
        b += turn * NR * 4;
    }
    for (; k; k--) {
        micro_step(acc, a, b, m->panel_bytes, rows, panels, type);
        a += a_step;
        b += NR * 4;
    }
    UNROLL for (int i = 0; i < rows; i++) {
        UNROLL for (int j = 0; j < nv; j++) {
            float *c = m->c + (size_t)i * m->ldc + j * LANES;
            VecF base = m->load ? vec_load(c) : (VecF){0};
            if (m->bias) base += vec_load(m->bias + j * LANES);
            VecF sum = m->alpha * acc[i * nv + j];
            ROUND_HERE(sum);
            vec_store(c, base + sum);
        }
    }
}

// X(rows, panels) for each kernel.
#define MICRO_KERNELS_6(X) X(1, 4) X(2, 2) X(1, 1) X(2, 1) X(3, 1) X(4, 1) X(5, 1) X(6, 1)
#if MR == 12
    #define MICRO_KERNELS(X)                                                                       \
        MICRO_KERNELS_6(X) X(3, 2) X(4, 2) X(7, 1) X(8, 1) X(9, 1) X(10, 1) X(11, 1) X(12, 1)
#else
    #define MICRO_KERNELS(X) MICRO_KERNELS_6(X)
#endif

#define MICRO_DEFINE(rows, panels)                                                                 \
    static void micro_f32_##rows##x##panels(const Micro *m) {                                      \
        micro_kernel(m, rows, panels, GEMM_F32);                                                   \
    }                                                                                              \
    static void micro_bf16_##rows##x##panels(const Micro *m) {                                     \
        micro_kernel(m, rows, panels, GEMM_BF16);                                                  \
    }
MICRO_KERNELS(MICRO_DEFINE)

typedef void MicroKernel(const Micro *m);
#define MICRO_ROW(rows, panels)                                                                    \
    [rows][panels] = {micro_f32_##rows##x##panels, micro_bf16_##rows##x##panels},
static MicroKernel *const kernels[MR + 1][MAX_GROUP + 1][2] = {MICRO_KERNELS(MICRO_ROW)};

// Panels [p, p + panels) of one strip. Partial last columns go through a buffer.
static void run_micro(const GemmBlock *g, int s, int p, int panels) {
    int rows = min_int(g->height, g->M - s * g->height);
    int col = p * NR, width = panels * NR, cols = min_int(width, g->N - col);
    size_t a_floats = (size_t)s * g->a_words * (size_t)g->height + g->k0 * (size_t)rows;
    Micro m = {.a = g->a + a_floats * a_per_word(g->type) * 4,
               .b = g->b + ((size_t)p * g->b_words + g->k0) * NR * 4,
               .panel_bytes = g->b_words * NR * 4,
               .kw = g->kw,
               .c = g->c + (size_t)s * (size_t)g->height * g->ldc + (size_t)col,
               .ldc = g->ldc,
               .alpha = g->alpha,
               .load = g->load};
    float bias[MAX_GROUP * NR], edge[MR * NR];
    if (g->bias && col < g->n_bias) {
        m.bias = g->bias + col;
        if (g->n_bias - col < width) {
            for (int j = 0; j < width; j++)
                bias[j] = col + j < g->n_bias ? g->bias[col + j] : 0;
            m.bias = bias;
        }
    }
    MicroKernel *kernel = kernels[rows][panels][g->type == GEMM_BF16];
    if (cols == width) {
        kernel(&m);
        return;
    }
    float *c = m.c;
    size_t bytes = (size_t)cols * sizeof(float);
    memset(edge, 0, sizeof edge);
    for (int i = 0; g->load && i < rows; i++)
        memcpy(edge + i * NR, c + (size_t)i * g->ldc, bytes);
    m.c = edge;
    m.ldc = NR;
    kernel(&m);
    for (int i = 0; i < rows; i++)
        memcpy(c + (size_t)i * g->ldc, edge + i * NR, bytes);
}

void gemm_block(const GemmBlock *g) {
    int rows = min_int(g->height, g->M - g->s0 * g->height), group = 1;
    if (g->s1 - g->s0 == 1) {
        group = MAX_GROUP;
        while (!kernels[rows][group][0])
            group--;
    }
    int whole = g->N / NR;  // panels without a partial column
    for (int p = g->p0; p < g->p1;) {
        int panels = p + group <= min_int(g->p1, whole) ? group : 1;
        for (int s = g->s0; s < g->s1; s++)
            run_micro(g, s, p, panels);
        p += panels;
    }
}
