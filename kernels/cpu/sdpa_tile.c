// sdpa_tile.c - see sdpa_tile.h. Everything here runs on the calling thread.
#include "kernels/cpu/sdpa_tile.h"

#include <math.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/vexp.h"

#if defined(__clang__)
    #define UNROLL_LANES _Pragma("clang loop unroll(full)")
#else
    #define UNROLL_LANES _Pragma("GCC unroll 16")
#endif

static inline VecF load_some(const void *src, ElemType type, size_t i, int n) {
    VecF v = {0};
    for (int j = 0; j < n; j++) {
        if (type == TYPE_F32)
            v[j] = ((const float *)src)[i + (size_t)j];
        else
            v[j] = bf16_to_f32(((const uint16_t *)src)[i + (size_t)j]);
    }
    return v;
}

// Rows i and i+s exchange the blocks of s lanes that lie off the diagonal.
#define LOW(j, s)      (((j) & (s)) ? LANES + (j) - (s) : (j))
#define HIGH(j, s)     (((j) & (s)) ? LANES + (j) : (j) + (s))
#define LIST4(F, j, s) F((j), s), F((j) + 1, s), F((j) + 2, s), F((j) + 3, s)
#if LANES == 4
    #define LIST(F, s) LIST4(F, 0, s)
#elif LANES == 8
    #define LIST(F, s) LIST4(F, 0, s), LIST4(F, 4, s)
#else
    #define LIST(F, s) LIST4(F, 0, s), LIST4(F, 4, s), LIST4(F, 8, s), LIST4(F, 12, s)
#endif
#define EXCHANGE(s)                                                                                \
    UNROLL_LANES for (int i = 0; i < LANES; i++) {                                                 \
        if (!(i & (s))) {                                                                          \
            VecF low = __builtin_shufflevector(v[i], v[i + (s)], LIST(LOW, s));                    \
            v[i + (s)] = __builtin_shufflevector(v[i], v[i + (s)], LIST(HIGH, s));                 \
            v[i] = low;                                                                            \
        }                                                                                          \
    }

static inline void transpose_lanes(VecF *v) {
    EXCHANGE(1)
    EXCHANGE(2)
#if LANES >= 8
    EXCHANGE(4)
#endif
#if LANES >= 16
    EXCHANGE(8)
#endif
}

// LANES rows x LANES columns.
static inline void block_f32(float *to, int panel, const float *src, size_t ld) {
    VecF v[LANES];
    UNROLL_LANES for (int i = 0; i < LANES; i++) v[i] = vec_load(src + (size_t)i * ld);
    transpose_lanes(v);
    UNROLL_LANES for (int i = 0; i < LANES; i++) vec_store(to + i * panel, v[i]);
}

// Pairs of bf16 anywhere.
typedef float VecPairs __attribute__((vector_size(LANES * 4), aligned(2), may_alias));

// LANES rows x 2*LANES columns: pairs of columns travel as words and part at the end.
static inline void block_bf16(float *to, int panel, const uint16_t *src, size_t ld) {
    VecF v[LANES];
    UNROLL_LANES for (int i = 0; i < LANES; i++) v[i] =
        *(const VecPairs *)(const void *)(src + (size_t)i * ld);
    transpose_lanes(v);
    UNROLL_LANES for (int i = 0; i < LANES; i++) {
        vec_store(to + 2 * i * panel, (VecF)((VecU)v[i] << 16));
        vec_store(to + (2 * i + 1) * panel, (VecF)((VecU)v[i] & 0xffff0000u));
    }
}

// rows <= LANES, cols <= LANES; zeros for the rows that are missing.
static void block_edge(float *to, int panel, const void *src, ElemType type, size_t ld, int rows,
                       int cols) {
    VecF v[LANES];
    for (int i = 0; i < LANES; i++) {
        size_t at = (size_t)i * ld;
        if (i >= rows)
            v[i] = (VecF){0};
        else if (type == TYPE_F32 && cols == LANES)
            v[i] = vec_load((const float *)src + at);
        else
            v[i] = load_some(src, type, at, cols);
    }
    transpose_lanes(v);
    for (int i = 0; i < cols; i++)
        vec_store(to + i * panel, v[i]);
}

static inline const char *element(const void *p, ElemType type, size_t i) {
    return (const char *)p + i * (type == TYPE_BF16 ? 2 : 4);
}

void tile_transpose(float *dst, int panel, const void *src, ElemType type, size_t ld, int rows,
                    int cols) {
    int step = type == TYPE_BF16 ? 2 * LANES : LANES, whole = cols / step * step;
    for (int r = 0; r < rows; r += LANES) {
        int n = min_int(LANES, rows - r), c = 0;
        float *to = dst + (size_t)(r / panel) * (size_t)panel * (size_t)cols + r % panel;
        const char *row = element(src, type, (size_t)r * ld);
        if (n == LANES) {
            for (; c < whole; c += step) {
                float *at = to + (size_t)c * (size_t)panel;
                const void *from = element(row, type, (size_t)c);
                if (type == TYPE_BF16)
                    block_bf16(at, panel, from, ld);
                else
                    block_f32(at, panel, from, ld);
            }
        }
        for (; c < cols; c += LANES)
            block_edge(to + (size_t)c * (size_t)panel, panel, element(row, type, (size_t)c), type,
                       ld, n, min_int(LANES, cols - c));
    }
}

// dst = n values of src in fp32; inlined, so that n is a constant where it can be.
static inline void load_row(float *dst, const void *src, ElemType type, int n) {
    if (type != TYPE_BF16) {
        memcpy(dst, src, (size_t)n * sizeof(float));
        return;
    }
    WordU *to = (WordU *)dst;
    const uint16_t *from = src;
    for (int i = 0; i < n; i++)
        to[i] = (uint32_t)from[i] << 16;
}

void tile_panels(float *dst, int height, const void *src, ElemType type, size_t ld, int rows,
                 int cols) {
    for (int r = 0; r < rows; r++) {
        const char *row = element(src, type, (size_t)r * ld);
        float *to = dst + (size_t)r * PANEL;
        int c = 0;
        for (; c + PANEL <= cols; c += PANEL)
            load_row(to + (size_t)c * (size_t)height, element(row, type, (size_t)c), type, PANEL);
        if (c < cols)
            load_row(to + (size_t)c * (size_t)height, element(row, type, (size_t)c), type,
                     cols - c);
    }
}

void tile_rows(float *dst, const void *src, ElemType type, size_t ld, int rows, int cols) {
    for (int r = 0; r < rows; r++)
        load_row(dst + (size_t)r * (size_t)cols, element(src, type, (size_t)r * ld), type, cols);
}

void tile_prefetch(const void *src, ElemType type, size_t ld, int rows, int cols) {
    enum { LINE = 64 };
    for (int r = 0; r < rows; r++) {
        const char *row = element(src, type, (size_t)r * ld),
                   *end = element(row, type, (size_t)cols);
        for (; row < end; row += LINE)
            __builtin_prefetch(row);
    }
}

void rows_begin(const RowBlock *b) {
    memset(b->o, 0, (size_t)b->n * (size_t)b->width * sizeof(float));
    for (int r = 0; r < b->n; r++) {
        b->m[r] = -INFINITY;
        b->l[r] = 0;
    }
}

void rows_scores(const RowBlock *b, TileSpan t, const float *kt) {
    size_t r = (size_t)t.first_row, HS = (size_t)b->HS;
    int end = (int)round_up((size_t)t.n_keys, LANES);
    for (int c = 0; c < end; c += b->panel)
        gemm_tile(b->scores + r * TILE_K + c, TILE_K, b->q + r * HS, HS, 1, kt + (size_t)c * HS,
                  (size_t)b->panel, b->n - t.first_row, min_int(b->panel, end - c), b->HS, false);
}

static inline VecI lanes_below(int n) {
    VecI lane;
    UNROLL_LANES for (int i = 0; i < LANES; i++) lane[i] = i;
    return lane < n;
}

static void scale_row(float *x, int n, float factor) {
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        vec_store(x + i, vec_load(x + i) * factor);
    for (; i < n; i++)
        x[i] *= factor;
}

static float exp_one(float x) {
    return vec_exp(vec_set(x))[0];
}

// The new maximum of a row, with what was summed under the old one rescaled to it.
static float raise_max(float *m, float *l, float *o, int width, float top) {
    if (!(top > *m)) return *m;
    if (*m > -INFINITY) {
        float factor = exp_one(*m - top);
        *l *= factor;
        scale_row(o, width, factor);
    }
    *m = top;
    return top;
}

// One row whose first `seen` keys count, all TILE_K when it is not masked. Beyond them the scores
// may be anything, NaN included.
static inline void softmax_row(const RowBlock *b, int r, int seen, bool masked,
                               const float *factor) {
    enum { NV = TILE_K / LANES };
    float *s = b->scores + (size_t)r * TILE_K;
    VecF x[NV], top = vec_set(-INFINITY);
    UNROLL_LANES for (int i = 0; i < NV; i++) {
        x[i] = vec_load(s + i * LANES) * vec_load(factor + i * LANES);
        if (masked) x[i] = vec_select(lanes_below(seen - i * LANES), x[i], vec_set(-INFINITY));
        top = vec_max(top, x[i]);
    }
    size_t row = (size_t)r;
    float m = raise_max(&b->m[row], &b->l[row], b->o + row * (size_t)b->width, b->width,
                        vec_largest(top));
    if (m == -INFINITY) m = 0;  // all scores are -inf so far: exp(-inf - 0) is 0, not NaN
    VecF sum = {0};
    UNROLL_LANES for (int i = 0; i < NV; i++) {
        VecF p = vec_exp(x[i] - m);
        if (masked) p = vec_select(lanes_below(seen - i * LANES), p, (VecF){0});
        vec_store(s + i * LANES, p);
        sum += p;
    }
    b->l[row] += vec_sum(sum);
}

void rows_softmax(const RowBlock *b, TileSpan t, const float *factor) {
    for (int r = t.first_row; r < b->n; r++) {
        int seen = min_int(b->limit[r] - t.first_key, t.n_keys);
        if (seen >= TILE_K)
            softmax_row(b, r, TILE_K, false, factor);
        else
            softmax_row(b, r, seen, true, factor);
    }
}

// Columns [column, column + n) of one tile of values, as rows_values takes them.
typedef struct Values {
    const float *v;
    size_t ld;
    int column, n, panel;
} Values;

// o += p v for rows [first, end) and keys [0, n_keys).
static void add_product(const RowBlock *b, const Values *v, int first, int end, int n_keys) {
    size_t r = (size_t)first, width = (size_t)b->width;
    for (int c = 0; c < v->n; c += v->panel)
        gemm_tile(b->o + r * width + (size_t)(v->column + c), width, b->scores + r * TILE_K, TILE_K,
                  1, v->v + (size_t)c * TILE_K, v->ld, end - first, min_int(v->panel, v->n - c),
                  n_keys, true);
}

// Whether keys [first, end) of the tile are finite: only then 0 times any of them is 0.
static bool finite_values(const Values *v, int first, int end) {
    VecF sum = {0};
    for (int c = 0; c < v->n; c += v->panel) {
        int n = min_int(v->panel, v->n - c);
        for (int k = first; k < end; k++) {
            const float *row = v->v + (size_t)c * TILE_K + (size_t)k * v->ld;
            int i = 0;
            for (; i + LANES <= n; i += LANES)
                sum += vec_load(row + i) * 0.0f;
            if (i < n) sum += vec_load_n(row + i, n - i) * 0.0f;
        }
    }
    return vec_sum(sum) == 0;
}

void rows_values(const RowBlock *b, TileSpan t, const float *values, size_t ld, int column, int n) {
    Values v = {values, ld ? ld : PANEL, column, n, ld ? n : (int)PANEL};
    int first = t.first_row, masked = first;  // rows that don't see the whole tile
    while (masked < b->n && b->limit[masked] - t.first_key < t.n_keys)
        masked++;
    if (masked > first && !finite_values(&v, b->limit[first] - t.first_key, t.n_keys)) {
        // Each row by its own keys. The sums keep their order, so these are the usual bits.
        for (int end; first < masked; first = end) {
            for (end = first + 1; end < masked && b->limit[end] == b->limit[first];)
                end++;
            add_product(b, &v, first, end, b->limit[first] - t.first_key);
        }
    }
    add_product(b, &v, first, b->n, t.n_keys);
}

void rows_fold(const RowBlock *b, const RowBlock *part) {
    for (int r = 0; r < b->n; r++) {
        size_t at = (size_t)r * (size_t)b->width;
        float *o = b->o + at, *po = part->o + at;
        if (part->l[r] == 0) continue;  // saw nothing
        float m = raise_max(&b->m[r], &b->l[r], o, b->width, part->m[r]);
        float factor = exp_one(part->m[r] - m);
        b->l[r] += part->l[r] * factor;
        for (int i = 0; i < b->width; i++)
            o[i] += po[i] * factor;
    }
}
