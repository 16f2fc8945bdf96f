// isa.h - the instruction set this translation unit is compiled for.
// Every file of kernels/cpu is compiled once per set (-DISA=base|avx2|avx512|avx512bf16), so
// nothing here names an intrinsic except vec_dot_bf16. External functions take the set's name
// through ISA_FN; kernels/ops_cpu.c picks one set at run time.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512BF16__)
    #include <immintrin.h>
#endif

#ifndef ISA
    #define ISA base
#endif
#define ISA_JOIN2(name, isa) name##_##isa
#define ISA_JOIN(name, isa)  ISA_JOIN2(name, isa)
#define ISA_FN(name)         ISA_JOIN(name, ISA)

// Lanes of one float vector. Tests may force a wider one than the processor has: the compiler then
// splits it, so the code of every set runs everywhere.
#ifndef LANES
    #if defined(__AVX512F__)
        #define LANES 16
    #elif defined(__AVX2__)
        #define LANES 8
    #else
        #define LANES 4
    #endif
#endif

typedef float VecF __attribute__((vector_size(LANES * 4)));
typedef int32_t VecI __attribute__((vector_size(LANES * 4)));
// The same without the alignment promise, for loads and stores anywhere.
typedef float VecFU __attribute__((vector_size(LANES * 4), aligned(4)));

// 32-bit words in memory of any type: a float, or a pair of bf16.
typedef uint32_t VecU __attribute__((vector_size(LANES * 4)));
typedef uint32_t VecUU __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint32_t WordU __attribute__((aligned(4), may_alias));

static inline VecF vec_load(const float *p) {
    return *(const VecFU *)p;
}
static inline void vec_store(float *p, VecF v) {
    *(VecFU *)p = v;
}
static inline VecF vec_set(float x) {
    return x - (VecF){0};
}

static inline VecU vec_load_words(const void *p) {
    return *(const VecUU *)p;
}
static inline VecU vec_set_word(uint32_t w) {
    return w + (VecU){0};
}

// acc + odd(a) * odd(b) + even(a) * even(b) for words that hold two bf16, even in the low half.
// The instruction flushes subnormal operands and results to zero.
static inline VecF vec_dot_bf16(VecF acc, VecU a, VecU b) {
#if defined(__AVX512BF16__) && LANES == 16
    return (VecF)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b);
#else
    acc += (VecF)(a & 0xffff0000u) * (VecF)(b & 0xffff0000u);
    return acc + (VecF)(a << 16) * (VecF)(b << 16);
#endif
}
