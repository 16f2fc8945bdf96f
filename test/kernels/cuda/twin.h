// twin.h - one op on two tables: equal inputs go to the CPU's op in fp32 and to the CUDA op, and
// the results are compared. A Twin is an array on both sides. Runs on the emulator and on GPUs.
#pragma once

#include "kernels/cuda/ops_cuda.h"
#include "test/arrays.h"

// Scores like those of a network; up to +-120; all the same.
typedef enum Scores { SCORES_NOISE, SCORES_LARGE, SCORES_EQUAL } Scores;

typedef struct Twin {
    float *cpu;  // n floats, guarded; NULL: the whole twin is NULL
    void *gpu;   // n elements of `type`
    size_t n;
    ElemType type;  // TYPE_FX or TYPE_F32
    size_t shift;   // bytes of gpu behind its allocation
} Twin;

// The i-th combination of CUDA table (fp32, bf16) and, on the emulator, thread order; NULL behind
// the last.
const Ops *twin_table(int i);
#define FOR_EACH_TABLE(ops) for (int table_ = 0; ((ops) = twin_table(table_)) != NULL; table_++)

// The sides as activations.
static inline floatX *cpu(Twin x) {
    return (floatX *)x.cpu;
}
static inline floatX *gpu(Twin x) {
    return (floatX *)x.gpu;
}

static inline bool is_bf16(const Ops *gpu) {
    return gpu->elem_size == 2;
}

// Seeded noise in [-scale, scale), already rounded to the type, so that both sides see the same.
Twin twin_noise(const Ops *gpu, ElemType type, size_t n, uint64_t seed, float scale);
// NaN everywhere: for outputs.
Twin twin_new(const Ops *gpu, ElemType type, size_t n);
// These values, rounded to the type on both sides.
Twin twin_of(const Ops *gpu, ElemType type, const float *values, size_t n);
Twin twin_null(void);
// Of the twins made from now on the k-th, counted from 1, lies one element behind its alignment on
// the device; 0: none. Kernels then may not take its elements 16 bytes at a time.
void twin_misalign(int k);
// Frees; checks the guards of the CPU's side.
void twin_free(TestCtx *t, const Ops *gpu, Twin *x);
#define TWIN_FREE(t, gpu, ...)                                                                     \
    do {                                                                                           \
        Twin *all_[] = {__VA_ARGS__};                                                              \
        for (size_t i_ = 0; i_ < sizeof all_ / sizeof all_[0]; i_++)                               \
            twin_free((t), (gpu), all_[i_]);                                                       \
    } while (0)

// The same ints on both sides: *gpu_copy is for the CUDA op, free it with gpu->free.
int *twin_ints(const Ops *gpu, const int *values, size_t n);

// What the device holds, as floats; freed with mem_free.
float *twin_download(const Ops *gpu, const Twin *x);

// Bound relative to the largest value for a result that is rounded once to `type` after sums of n
// products in fp32 in another order.
double twin_tol(const Ops *gpu, ElemType type, size_t n);

// What the device holds has the bits of `clean` in its first `past` elements; of the n behind them
// each run of `head` has a value that is not finite.
void twin_check_past(TestCtx *t, const Ops *gpu, const Twin *x, const float *clean, size_t past,
                     size_t n, size_t head);

// |gpu - cpu| <= rel_tol max|cpu| + abs_tol for all elements.
void twin_check(TestCtx *t, const char *file, int line, const char *what, const Ops *gpu,
                const Twin *x, double rel_tol, double abs_tol);
// Each element by itself, for extreme values: both are NaN, or the same infinity, or
// |gpu - cpu| <= tol (|cpu| + floor).
void twin_check_each(TestCtx *t, const char *file, int line, const char *what, const Ops *gpu,
                     const Twin *x, double tol, double floor);
#define TWIN_CHECK_EACH(t, gpu, x, tol, floor)                                                     \
    twin_check_each((t), __FILE__, __LINE__, #x, (gpu), &(x), (tol), (floor))
#define TWIN_CHECK(t, gpu, x, rel_tol, abs_tol)                                                    \
    twin_check((t), __FILE__, __LINE__, #x, (gpu), &(x), (rel_tol), (abs_tol))
