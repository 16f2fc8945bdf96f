// isa.h - the instruction set this translation unit is compiled for.
// Every file of kernels/cpu is compiled once per set (-DISA=base|avx2|avx512|avx512bf16), so nothing
// here names an intrinsic except dot_bf16. External functions take the set's name through ISA_FN;
// kernels/ops_cpu.c picks one set at run time.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef ISA
    #define ISA base
#endif
#define ISA_JOIN2(name, isa) name##_##isa
#define ISA_JOIN(name, isa) ISA_JOIN2(name, isa)
#define ISA_FN(name) ISA_JOIN(name, ISA)

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

static inline VecF vec_load(const float *p) { return *(const VecFU *)p; }
static inline void vec_store(float *p, VecF v) { *(VecFU *)p = v; }
static inline VecF vec_set(float x) { return x - (VecF){0}; }
