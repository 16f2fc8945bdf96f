// arrays.c - see arrays.h.
#include "test/arrays.h"

#include <math.h>
#include <string.h>
#ifdef _OPENMP
    #include <omp.h>
#endif

enum { GUARD = 32 };
static const uint32_t GUARD_WORD = 0x7FA5A5A5u;  // a NaN, should anybody read it

const int TEST_WIDTHS[] = {1, 8, 64, 72, 320, 768, 1000, 2304, 0};

// The size lies in the first guard's place.
float *floats_new(size_t n) {
    uint32_t *p = mem_alloc(n + 2 * GUARD, sizeof *p);
    for (size_t i = 0; i < n + 2 * GUARD; i++)
        p[i] = GUARD_WORD;
    memcpy(p, &n, sizeof n);
    return (float *)p + GUARD;
}

float *floats_noise(size_t n, uint64_t seed, float scale) {
    float *p = floats_new(n);
    test_noise(p, n, seed, scale);
    return p;
}

void floats_free(TestCtx *t, float *p) {
    if (!p) return;
    size_t n, header = sizeof n / sizeof(uint32_t), bad = 0;
    char *start = (char *)(p - GUARD);
    memcpy(&n, start, sizeof n);
    for (size_t i = header; i < n + 2 * GUARD; i++) {
        uint32_t word;
        memcpy(&word, start + i * sizeof word, sizeof word);
        bad += (i < GUARD || i >= GUARD + n) && word != GUARD_WORD;
    }
    CHECK_MSG(t, bad == 0, "%zu words outside an array of %zu were overwritten", bad, n);
    mem_free(start);
}

double *doubles_new(size_t n) {
    return mem_alloc(n, sizeof(double));
}

double *doubles_of(const float *x, size_t n) {
    double *d = doubles_new(n);
    for (size_t i = 0; i < n; i++)
        d[i] = (double)x[i];
    return d;
}

void set_threads(int n) {
#ifdef _OPENMP
    omp_set_num_threads(n ? n : omp_get_num_procs());
#else
    (void)n;
#endif
}

// Roundings of a sum partly cancel; the longest chain of any op is far shorter than n.
double sum_tol(size_t n) {
    return 0x1p-24 * (8 + sqrt((double)n) / 4);
}
