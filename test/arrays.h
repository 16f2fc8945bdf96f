// arrays.h - buffers for tests of ops: guarded on both sides, NaN until written, and with a double
// copy for the references; and the tables of all instruction sets.
#pragma once

#include "kernels/ops.h"
#include "test/test.h"

// n floats, all NaN, between guard words.
float *floats_new(size_t n);
// n floats of seeded noise in [-scale, scale).
float *floats_noise(size_t n, uint64_t seed, float scale);
// Frees; fails the test when a guard word was overwritten.
void floats_free(TestCtx *t, float *p);
// n doubles with the same values, freed with mem_free.
double *doubles_of(const float *x, size_t n);
double *doubles_new(size_t n);  // zero

static inline floatX *fx(float *p) {
    return (floatX *)p;
}

// The i-th table that was compiled and that this processor can run, from the plainest to the best;
// NULL behind the last. Inline, so that tests without ops need not link them.
static inline const Ops *ops_set(int i) {
    static const char *const names[] = {"base", "avx2", "avx512", "avx512bf16"};
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        const Ops *ops = ops_cpu_isa(names[k]);
        if (ops && i-- == 0) return ops;
    }
    return NULL;
}
#define FOR_EACH_SET(ops) for (int set_ = 0; ((ops) = ops_set(set_)) != NULL; set_++)

// Threads of the following ops, 0: one for each processor; no effect without OpenMP.
void set_threads(int n);

// Bound relative to the largest value for fp32 results that are sums of n products of fp32 values.
double sum_tol(size_t n);

// Widths that every op must accept; 0 ends the list.
extern const int TEST_WIDTHS[];
