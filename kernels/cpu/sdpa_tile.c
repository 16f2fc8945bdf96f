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

typedef uint16_t VecHU __attribute__((vector_size(LANES * 2), aligned(2), may_alias));

// The type is a constant wherever this is inlined.
static inline VecF load_lanes(const void *src, ElemType type, size_t i) {
    if (type == TYPE_F32) return vec_load((const float *)src + i);
    VecHU h = *(const VecHU *)(const void *)((const uint16_t *)src + i);
    return (VecF)(__builtin_convertvector(h, VecU) << 16);
}

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

static inline void transpose(float *dst, int panel, const void *src, ElemType type, size_t ld,
                             int rows, int cols) {
    for (int r = 0; r < TILE_K; r += LANES) {
        int n = min_int(LANES, rows - r);
        float *column = dst + (size_t)(r / panel) * (size_t)panel * (size_t)cols + r % panel;
        for (int c = 0; c < cols; c += LANES) {
            int wide = min_int(LANES, cols - c);
            VecF v[LANES];
            size_t at = (size_t)r * ld + (size_t)c;
            if (n == LANES && wide == LANES) {
                UNROLL_LANES for (int i = 0; i < LANES; i++) v[i] =
                    load_lanes(src, type, at + (size_t)i * ld);
            } else {
                for (int i = 0; i < LANES; i++)
                    v[i] = i < n ? load_some(src, type, at + (size_t)i * ld, wide) : (VecF){0};
            }
            transpose_lanes(v);
            float *to = column + (size_t)c * (size_t)panel;
            if (wide == LANES) {
                UNROLL_LANES for (int i = 0; i < LANES; i++) vec_store(to + i * panel, v[i]);
            } else {
                for (int i = 0; i < wide; i++)
                    vec_store(to + i * panel, v[i]);
            }
        }
    }
}

void tile_transpose(float *dst, int panel, const void *src, ElemType type, size_t ld, int rows,
                    int cols) {
    if (type == TYPE_BF16)
        transpose(dst, panel, src, TYPE_BF16, ld, rows, cols);
    else
        transpose(dst, panel, src, TYPE_F32, ld, rows, cols);
}

static inline void load_row(float *dst, const void *src, ElemType type, size_t at, int n) {
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        vec_store(dst + i, load_lanes(src, type, at + (size_t)i));
    if (i < n) vec_store_n(dst + i, load_some(src, type, at + (size_t)i, n - i), n - i);
}

static inline void panels(float *dst, int height, const void *src, ElemType type, size_t ld,
                          int rows, int cols) {
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < cols; c += PANEL)
            load_row(dst + (size_t)c * (size_t)height + (size_t)r * PANEL, src, type,
                     (size_t)r * ld + (size_t)c, min_int(PANEL, cols - c));
    }
}

void tile_panels(float *dst, int height, const void *src, ElemType type, size_t ld, int rows,
                 int cols) {
    if (type == TYPE_BF16)
        panels(dst, height, src, TYPE_BF16, ld, rows, cols);
    else
        panels(dst, height, src, TYPE_F32, ld, rows, cols);
}

void tile_rows(float *dst, const void *src, ElemType type, size_t ld, int rows, int cols) {
    for (int r = 0; r < rows; r++) {
        float *row = dst + (size_t)r * (size_t)cols;
        if (type == TYPE_BF16)
            load_row(row, src, TYPE_BF16, (size_t)r * ld, cols);
        else
            load_row(row, src, TYPE_F32, (size_t)r * ld, cols);
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

void rows_values(const RowBlock *b, TileSpan t, const float *v, size_t ld, int column, int n) {
    size_t r = (size_t)t.first_row, width = (size_t)b->width;
    int panel = ld ? n : (int)PANEL;
    for (int c = 0; c < n; c += panel)
        gemm_tile(b->o + r * width + (size_t)(column + c), width, b->scores + r * TILE_K, TILE_K, 1,
                  v + (size_t)c * TILE_K, ld ? ld : PANEL, b->n - t.first_row,
                  min_int(panel, n - c), t.n_keys, true);
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
