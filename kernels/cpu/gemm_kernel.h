// gemm_kernel.h - the inner parts of gemm: packed strips and the register kernels over them.
//
// Both operands are packed the same way, into strips of some rows of A or columns of B. A strip
// holds, for each word k, its `width` words side by side: [k][width]. A word is one float, or for
// GEMM_BF16 two bf16 (K = 2k in the low half, 2k+1 in the high half; zero beyond an odd K).
// B strips (panels) are NR wide, zero-padded. A strips have as many words as rows, at most MR.
#pragma once

#include "kernels/cpu/gemm.h"

#define gemm_pack_strips ISA_FN(gemm_pack_strips)
#define gemm_block       ISA_FN(gemm_block)

// Register tile: MR rows x NR columns of accumulators, so that with NR/LANES vectors of B and one
// of A everything stays in registers. 16 or 32 vector registers.
#ifndef MR
    #if defined(__AVX512F__) || defined(__aarch64__)
        #define MR 12
    #else
        #define MR 6
    #endif
#endif
#define NR (2 * LANES)
// Words of K that are summed in registers before they are added to C. An NR strip of this length
// stays in a first-level cache of 32 KiB.
#define KC (LANES == 16 ? 192 : 256)

// Sanitizers multiply the code, so they get loops.
#if defined(__clang__)
    #if __has_feature(address_sanitizer) || __has_feature(undefined_behavior_sanitizer)
        #define UNROLL
    #else
        #define UNROLL _Pragma("clang loop unroll(full)")
    #endif
#else
    #define UNROLL _Pragma("GCC unroll 32")
#endif
#define ALWAYS_INLINE static inline __attribute__((always_inline))

static inline size_t gemm_words(int K, GemmType type) {
    return type == GEMM_BF16 ? ((size_t)K + 1) / 2 : (size_t)K;
}

// A strips of GEMM_BF16 hold pairs where the processor multiplies pairs, else the rounded values as
// floats, [K][rows] with K even: widening in the kernel pays for B alone.
#ifndef A_PAIRS
    #if defined(__AVX512BF16__)
        #define A_PAIRS 1
    #else
        #define A_PAIRS 0
    #endif
#endif
typedef enum StripForm { STRIP_F32, STRIP_ROUNDED, STRIP_PAIRS } StripForm;

static inline StripForm a_form(GemmType type) {
    return type == GEMM_F32 ? STRIP_F32 : A_PAIRS ? STRIP_PAIRS : STRIP_ROUNDED;
}
static inline StripForm b_form(GemmType type) {
    return type == GEMM_F32 ? STRIP_F32 : STRIP_PAIRS;
}
// Words of A to one word of B.
static inline size_t a_per_word(GemmType type) {
    return a_form(type) == STRIP_ROUNDED ? 2 : 1;
}

// n rows of K values, element (i, k) at src[i*row + k*col], to be cut into strips of `width` rows.
typedef struct StripPack {
    const float *src;
    size_t row, col;
    int n, K;
    int width;
    bool pad;  // the last strip is as wide as the others, else as wide as it has rows
    StripForm form;
} StripPack;

// Shared among the threads of the team that calls it; no barrier at the end.
void gemm_pack_strips(void *strips, const StripPack *p);

// Strips [s0, s1) of A times panels [p0, p1) of B over words [k0, k0 + kw), kw <= KC.
typedef struct GemmBlock {
    GemmType type;
    const char *a, *b;        // first strip, first panel
    size_t a_words, b_words;  // K of the strips and panels as packed, in words of B
    int height;               // rows of an A strip; the last may have fewer
    int M, N;
    int s0, s1, p0, p1;
    size_t k0, kw;
    float *c;  // of strip 0, panel 0
    size_t ldc;
    float alpha;
    bool load;          // C counts
    const float *bias;  // (n_bias) to add now, or NULL
    int n_bias;
} GemmBlock;

void gemm_block(const GemmBlock *g);
