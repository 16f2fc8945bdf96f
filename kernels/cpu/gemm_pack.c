// gemm_pack.c - copies operands into packed strips, rounding to bf16 on the way where asked.
// A is packed in every call and so is B for gradients of weights, hence the care for speed: memory
// is read in runs, and everything is done on vectors of words.
#ifdef _OPENMP
    #include <omp.h>
#endif

#include "gpt/util.h"
#include "kernels/cpu/gemm_kernel.h"

enum {
    BLOCK = 32,      // values of K transposed at a time; even
    COLUMNS = 16,    // values of K packed at a time from rows that lie side by side; even
    GROUP_ROWS = 96  // rows that share a pass over memory, in which they lie side by side
};

// Rounds floats to bf16, nearest even, left in the upper halves. NaN keeps its sign, becomes quiet.
ALWAYS_INLINE VecU round_words(VecU u) {
    VecU rounded = u + 0x7fffu + ((u >> 16) & 1u);
    VecU nan = (VecU)((VecI)(u & 0x7fffffffu) > (VecI)vec_set_word(0x7f800000u));
    return ((rounded & ~nan) | ((u | 0x400000u) & nan)) & 0xffff0000u;
}

static uint32_t round_word(uint32_t u) {
    return round_words(vec_set_word(u))[0];
}

static inline int whole_vectors(int width) {
    return (width + LANES - 1) / LANES * LANES;
}

ALWAYS_INLINE VecU load_some(const WordU *p, int n) {
    if (n >= LANES) return vec_load_words(p);
    VecU v = {0};
    memcpy(&v, p, (size_t)n * 4);
    return v;
}

static size_t strip_words(int K, StripForm form) {
    if (form == STRIP_F32) return (size_t)K;
    return form == STRIP_PAIRS ? ((size_t)K + 1) / 2 : ((size_t)K + 1) / 2 * 2;
}

// Any strides, any n.
static void pack_any(WordU *strip, int width, const WordU *src, size_t row, size_t col, int n,
                     int K, StripForm form) {
    size_t words = strip_words(K, form);
    for (size_t k = 0; k < words; k++) {
        size_t k1 = form == STRIP_PAIRS ? 2 * k : k;
        for (int i = 0; i < width; i++) {
            const WordU *a = src + (size_t)i * row;
            uint32_t word = i < n && k1 < (size_t)K ? a[k1 * col] : 0;
            if (form != STRIP_F32) word = round_word(word);
            if (form == STRIP_PAIRS) {
                word >>= 16;
                if (i < n && k1 + 1 < (size_t)K) word |= round_word(a[(k1 + 1) * col]);
            }
            *strip++ = word;
        }
    }
}

// One word of each row from rows that lie side by side. Reads and writes whole vectors, beyond
// `width` too, unless `exact`. A pair takes a second column if there is one.
ALWAYS_INLINE void pack_column(WordU *strip, int width, const WordU *a, const WordU *second,
                               bool exact, StripForm form) {
    UNROLL for (int i = 0; i < width; i += LANES) {
        int n = exact ? min_int(width - i, LANES) : LANES;
        VecU v = load_some(a + i, n);
        if (form != STRIP_F32) v = round_words(v);
        if (form == STRIP_PAIRS) {
            v >>= 16;
            if (second) v |= round_words(load_some(second + i, n));
        }
        if (n < LANES)
            memcpy(strip + i, &v, (size_t)n * 4);
        else
            *(VecUU *)(strip + i) = v;
    }
}

// Rows side by side in memory (row stride 1), columns at least whole_vectors(width) apart or one
// directly behind the other, so that a vector that runs over reads the next column. What it writes
// too much is overwritten by the next word; the last words are exact.
ALWAYS_INLINE void pack_beside(WordU *strip, int width, const WordU *src, size_t col, int K,
                               StripForm form) {
    int step = form == STRIP_PAIRS ? 2 : 1, words = (K + step - 1) / step;
    int over = (whole_vectors(width) - width + width - 1) / width;
    int inexact = form == STRIP_PAIRS && K % 2 && over == 0 ? words - 1 : words - over, k = 0;
    for (; k < inexact; k++, strip += width) {
        const WordU *a = src + (size_t)(k * step) * col;
        pack_column(strip, width, a, a + col, false, form);
    }
    for (; k < words; k++, strip += width) {
        const WordU *a = src + (size_t)(k * step) * col;
        pack_column(strip, width, a, k * step + 1 < K ? a + col : NULL, true, form);
    }
    if (form == STRIP_ROUNDED && K % 2) memset(strip, 0, (size_t)width * 4);
}

typedef uint32_t Word4 __attribute__((vector_size(16)));
typedef uint32_t Word4U __attribute__((vector_size(16), aligned(4), may_alias));
#if defined(__clang__)
    #define SHUFFLE4(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
    #define SHUFFLE4(a, b, ...) __builtin_shuffle(a, b, (Word4){__VA_ARGS__})
#endif

ALWAYS_INLINE void transpose4(WordU *out, size_t ld_out, const WordU *in, size_t ld_in) {
    Word4 a = *(const Word4U *)in, b = *(const Word4U *)(in + ld_in);
    Word4 c = *(const Word4U *)(in + 2 * ld_in), d = *(const Word4U *)(in + 3 * ld_in);
    Word4 ab_low = SHUFFLE4(a, b, 0, 4, 1, 5), ab_high = SHUFFLE4(a, b, 2, 6, 3, 7);
    Word4 cd_low = SHUFFLE4(c, d, 0, 4, 1, 5), cd_high = SHUFFLE4(c, d, 2, 6, 3, 7);
    *(Word4U *)out = SHUFFLE4(ab_low, cd_low, 0, 1, 4, 5);
    *(Word4U *)(out + ld_out) = SHUFFLE4(ab_low, cd_low, 2, 3, 6, 7);
    *(Word4U *)(out + 2 * ld_out) = SHUFFLE4(ab_high, cd_high, 0, 1, 4, 5);
    *(Word4U *)(out + 3 * ld_out) = SHUFFLE4(ab_high, cd_high, 2, 3, 6, 7);
}

// out[k][i] = in[i][k] for `width` rows of K words.
ALWAYS_INLINE void transpose(WordU *out, int width, const WordU *in, size_t row, int K) {
    int k = 0;
    for (; k + 4 <= K; k += 4, out += 4 * width) {
        UNROLL for (int i = 0; i + 4 <= width; i += 4) {
            transpose4(out + i, (size_t)width, in + (size_t)i * row + k, row);
        }
        UNROLL for (int i = width / 4 * 4; i < width; i++) {
            UNROLL for (int j = 0; j < 4; j++) out[j * width + i] =
                in[(size_t)i * row + (size_t)(k + j)];
        }
    }
    for (; k < K; k++, out += width) {
        for (int i = 0; i < width; i++)
            out[i] = in[(size_t)i * row + (size_t)k];
    }
}

// Values of a row side by side in memory (column stride 1): blocks are transposed, then rounded.
ALWAYS_INLINE void pack_across(WordU *strip, int width, const WordU *src, size_t row, int K,
                               StripForm form) {
    if (form == STRIP_F32) {
        transpose(strip, width, src, row, K);
        return;
    }
    WordU block[BLOCK * (NR > MR ? NR : MR)];
    for (int k = 0; k < K; k += BLOCK) {
        int n = min_int(BLOCK, K - k);
        transpose(block, width, src + k, row, n);
        pack_beside(strip, width, block, (size_t)width, n, form);
        strip += strip_words(n, form) * (size_t)width;
    }
}

#define PACK_FORMS(X) X(f32, STRIP_F32) X(rounded, STRIP_ROUNDED) X(pairs, STRIP_PAIRS)
#define PACK_DEFINE(name, form)                                                                    \
    static void pack_##name(WordU *strip, int width, const WordU *src, size_t row, size_t col,     \
                            int n, int K) {                                                        \
        bool beside = row == 1 && col >= (size_t)whole_vectors(width);                             \
        if (n == MR && width == MR && beside)                                                      \
            pack_beside(strip, MR, src, col, K, form);                                             \
        else if (n == MR && width == MR && col == 1)                                               \
            pack_across(strip, MR, src, row, K, form);                                             \
        else if (n == NR && width == NR && beside)                                                 \
            pack_beside(strip, NR, src, col, K, form);                                             \
        else if (n == NR && width == NR && col == 1)                                               \
            pack_across(strip, NR, src, row, K, form);                                             \
        else                                                                                       \
            pack_any(strip, width, src, row, col, n, K, form);                                     \
    }
PACK_FORMS(PACK_DEFINE)

static void pack_strip(WordU *strip, int width, const WordU *src, size_t row, size_t col, int n,
                       int K, StripForm form) {
    if (form == STRIP_F32)
        pack_f32(strip, width, src, row, col, n, K);
    else if (form == STRIP_ROUNDED)
        pack_rounded(strip, width, src, row, col, n, K);
    else
        pack_pairs(strip, width, src, row, col, n, K);
}

// Rows [from, from + n). Those that lie side by side are packed a few columns at a time, so that
// each line of memory is read once.
static void pack_rows(void *strips, const StripPack *p, int from, int n) {
    size_t words = strip_words(p->K, p->form);
    int block = p->row == 1 ? COLUMNS : max_int(p->K, 1);
    for (int k = 0; k < p->K; k += block) {
        int K = min_int(block, p->K - k);
        for (int i = from; i < from + n; i += p->width) {
            WordU *strip = (WordU *)strips + (size_t)i * words;
            int rows = min_int(p->width, p->n - i);
            int kept = p->pad ? p->width : rows;
            strip += strip_words(k, p->form) * (size_t)kept;
            pack_strip(strip, kept, (const WordU *)p->src + (size_t)i * p->row + (size_t)k * p->col,
                       p->row, p->col, rows, K, p->form);
        }
    }
}

void gemm_pack_strips(void *strips, const StripPack *p) {
    int threads = 1;
#ifdef _OPENMP
    threads = omp_get_num_threads();
#endif
    int n_strips = (int)ceil_div((size_t)p->n, (size_t)p->width);
    int group = max_int(1, min_int(GROUP_ROWS / p->width, n_strips / threads)) * p->width;
#pragma omp for schedule(static) nowait
    for (int i = 0; i < p->n; i += group)
        pack_rows(strips, p, i, min_int(group, p->n - i));
}

size_t gemm_panel_bytes(int N, int K, GemmType type) {
    size_t panels = ceil_div((size_t)max_int(N, 0), NR);
    return round_up(panels * NR * gemm_words(max_int(K, 0), type) * 4, 64);
}

void gemm_pack(void *panels, const float *b, size_t row_stride, size_t col_stride, int K, int N,
               GemmType type) {
    if (K <= 0 || N <= 0) return;
    StripPack p = {b, col_stride, row_stride, N, K, NR, true, b_form(type)};
#pragma omp parallel
    gemm_pack_strips(panels, &p);
}
