// peak.c - see peak.h. Loops that do nothing but the one thing measured.
#include "kernels/cpu/peak.h"

#ifdef _OPENMP
    #include <omp.h>
#endif

#include "gpt/util.h"
#include "kernels/cpu/gemm_kernel.h"

enum {
    SUMS = 2 * MR,    // independent sums: enough to hide the latency, few enough for registers
    STEPS = 1 << 15,  // of one burst, some 0.1 ms
    READ_WORDS = 1 << 26,
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

static float burst_run(Burst what, const float *buffer, int thread, int threads) {
    if (what == BURST_FMA) return fma_burst(0.5f, 1.0f);
    if (what == BURST_DOT) return dot_burst(0x3c003c00u);
    size_t lines = READ_WORDS / (4 * LANES);
    size_t from = lines * (size_t)thread / (size_t)threads;
    size_t to = lines * (size_t)(thread + 1) / (size_t)threads;
    return read_burst(buffer + from * 4 * LANES, (to - from) * 4 * LANES);
}

// The shortest time of one burst on all threads together; *n gets the number of threads.
static double burst_seconds(Burst what, const float *buffer, int *n) {
    double best = 1e9, end = now_seconds() + SECONDS, start = 0;
    bool more = true;
    volatile float sink = 0;  // the results count for nothing, but must be computed
#pragma omp parallel
    {
        int thread = 0, threads = 1;
#ifdef _OPENMP
        thread = omp_get_thread_num();
        threads = omp_get_num_threads();
#endif
        float sum = 0;
        while (more) {
#pragma omp barrier
#pragma omp master
            start = now_seconds();
#pragma omp barrier
            sum += burst_run(what, buffer, thread, threads);
#pragma omp barrier
#pragma omp master
            {
                double now = now_seconds();
                if (now - start < best) best = now - start;
                more = now < end;
                *n = threads;
            }
#pragma omp barrier
        }
#pragma omp critical
        sink = sink + sum;
    }
    return best;
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
    return (double)READ_WORDS * sizeof(float) / seconds;
}
