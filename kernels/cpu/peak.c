// peak.c - see peak.h. Loops that do nothing but the one thing measured.
#include "kernels/cpu/peak.h"

#include <stdlib.h>
#ifdef _OPENMP
    #include <omp.h>
#endif

#include "gpt/util.h"
#include "kernels/cpu/gemm_kernel.h"

enum {
    SUMS = 2 * MR,    // independent sums: enough to hide the latency, few enough for registers
    STEPS = 1 << 15,  // of one burst, some 0.1 ms
    READ_WORDS = 1 << 26,
    PIECES = 32,  // of it, one for each burst
    SAMPLES = 4096,
};
static const double SECONDS = 0.15;

// x <- x * factor + addend settles at a normal number.
static float fma_burst(float factor, float addend) {
    VecF x[SUMS], f = vec_set(factor), a = vec_set(addend);
    UNROLL for (int i = 0; i < SUMS; i++) x[i] = vec_set((float)i);
    for (int step = 0; step < STEPS; step++) {
        UNROLL for (int i = 0; i < SUMS; i++) x[i] = x[i] * f + a;
    }
    UNROLL for (int i = 1; i < SUMS; i++) x[0] += x[i];
    return x[0][0];
}

static float dot_burst(uint32_t pair) {
    VecF x[SUMS];
    VecU f = vec_set_word(pair);
    UNROLL for (int i = 0; i < SUMS; i++) x[i] = vec_set((float)i);
    for (int step = 0; step < STEPS; step++) {
        UNROLL for (int i = 0; i < SUMS; i++) x[i] = vec_dot_bf16(x[i], f, f);
    }
    UNROLL for (int i = 1; i < SUMS; i++) x[0] += x[i];
    return x[0][0];
}

// Sums that go nowhere, four streams of vectors; n is a multiple of 4 * LANES.
static float read_burst(const float *p, size_t n) {
    VecF sum[4] = {{0}};
    for (size_t i = 0; i < n; i += 4 * LANES) {
        UNROLL for (int j = 0; j < 4; j++) sum[j] += vec_load(p + i + j * LANES);
    }
    return (sum[0] + sum[1] + sum[2] + sum[3])[0];
}

typedef enum Burst { BURST_FMA, BURST_DOT, BURST_READ } Burst;

// `turn` counts bursts: each reads the next piece of the buffer, which no cache holds as a whole.
static float burst_run(Burst what, const float *buffer, int turn, int thread, int threads) {
    if (what == BURST_FMA) return fma_burst(0.5f, 1.0f);
    if (what == BURST_DOT) return dot_burst(0x3c003c00u);
    size_t lines = READ_WORDS / PIECES / (4 * LANES);
    size_t from = lines * (size_t)thread / (size_t)threads;
    size_t to = lines * (size_t)(thread + 1) / (size_t)threads;
    const float *piece = buffer + (size_t)(turn % PIECES) * lines * 4 * LANES;
    return read_burst(piece + from * 4 * LANES, (to - from) * 4 * LANES);
}

// Times of bursts; a burst takes as long as its slowest thread.
typedef struct Bursts {
    double seconds[SAMPLES];
    int n, threads;
    double *own;  // (threads) of the burst under way
} Bursts;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Threads start together and time themselves: on a busy machine a thread is seldom interrupted in a
// burst, but often between two. One in ten of the bursts is as short or shorter than the result, so
// that a burst in which siblings on one core missed each other doesn't set it.
static double burst_seconds(Burst what, const float *buffer, int *n) {
    Bursts *b = mem_alloc(1, sizeof *b);
    double end = now_seconds() + SECONDS;
    bool more = true;
    volatile float sink = 0;  // the results count for nothing, but must be computed
#pragma omp parallel
    {
        int thread = 0, threads = 1;
#ifdef _OPENMP
        thread = omp_get_thread_num();
        threads = omp_get_num_threads();
#endif
#pragma omp single
        {
            b->threads = threads;
            b->own = mem_alloc((size_t)threads, sizeof(double));
        }
        float sum = 0;
        int turn = 0;
        while (more) {
#pragma omp barrier
            double start = now_seconds();
            sum += burst_run(what, buffer, turn++, thread, threads);
            b->own[thread] = now_seconds() - start;
#pragma omp barrier
#pragma omp master
            {
                double slowest = 0;
                for (int i = 0; i < threads; i++)
                    slowest = b->own[i] > slowest ? b->own[i] : slowest;
                b->seconds[b->n++] = slowest;
                more = now_seconds() < end && b->n < SAMPLES;
            }
#pragma omp barrier
        }
#pragma omp critical
        sink = sink + sum;
    }
    qsort(b->seconds, (size_t)b->n, sizeof(double), by_value);
    double seconds = b->seconds[b->n / 10];
    *n = b->threads;
    mem_free(b->own);
    mem_free(b);
    return seconds;
}

double peak_fma_flops(void) {
    int n = 1;
    double seconds = burst_seconds(BURST_FMA, NULL, &n);
    return 2.0 * SUMS * LANES * STEPS * n / seconds;
}

bool peak_has_bf16(void) {
#if defined(__AVX512BF16__) && LANES == 16
    return true;
#else
    return false;
#endif
}

double peak_bf16_flops(void) {
    if (!peak_has_bf16()) return peak_fma_flops();
    int n = 1;
    double seconds = burst_seconds(BURST_DOT, NULL, &n);
    return 4.0 * SUMS * LANES * STEPS * n / seconds;
}

double peak_read_bytes(void) {
    float *buffer = mem_alloc(READ_WORDS, sizeof(float));
    int n = 1;
    double seconds = burst_seconds(BURST_READ, buffer, &n);
    mem_free(buffer);
    return (double)(READ_WORDS / PIECES) * sizeof(float) / seconds;
}
