// bench_kernels.h - timing single ops: what the cases of bench_kernels*.c share.
#pragma once

#include "gpt/bench.h"

enum { KERNEL_BUFFERS = 16, KERNEL_NOISE = 65521 };

// The ops of one config in one type, and the case that is being timed.
typedef struct Kernels {
    Bench *b;
    const char *config;
    const Ops *ops;
    ElemType compute;
    Config c;
    AttnDims d;
    size_t N;            // tokens of the training step
    const float *rope;   // (T, HS/2, 2)
    const float *noise;  // host, KERNEL_NOISE floats
    void *buffer[KERNEL_BUFFERS];
    int n_buffers;
    StepState *state;  // of a good step
    double seconds;    // that one op may take
    const char *name;
    double flops, bytes;  // of one call
    int left, burst;      // calls until the next wait; calls between two waits, 0: warming up
    double start;
    BenchTimes times;  // of one call
} Kernels;

// Times the statement behind it: TIMED(k, "act_forward", flops, bytes) ops->act_forward(...);
// FLOPs are those of products, 0 where there are none; bytes are inputs read and outputs written
// once.
#define TIMED(k, name, flops, bytes)                                                               \
    for (kernel_begin((k), (name), (flops), (bytes)); kernel_again(k);)
void kernel_begin(Kernels *k, const char *name, double flops, double bytes);
bool kernel_again(Kernels *k);

// Device memory with noise in it, freed with the case.
floatX *kernel_fx(Kernels *k, size_t n);
float *kernel_f32(Kernels *k, size_t n);
int *kernel_ints(Kernels *k, const int *values, size_t n);

// A case: allocates, fills in arguments and times one or more ops.
typedef void KernelCase(Kernels *k);
// bench_kernels_attn.c: attention, its projections into heads, and the cache.
KernelCase kernel_rope, kernel_lowrank, kernel_heads, kernel_sdpa, kernel_extend,
    kernel_lowrank_extend;
