// twin.c - see twin.h.
#define _XOPEN_SOURCE 700
#include "test/kernels/cuda/twin.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const Ops *twin_table(int i) {
    static const char *const orders[] = {"forward", "reverse", "shuffle:7"};
    enum { N_ORDERS = sizeof orders / sizeof orders[0] };
    if (i == 2 * N_ORDERS) {
        unsetenv("GPU_EMU_ORDER");
        return NULL;
    }
    Error err;
    if (!cuda_open(0, &err)) die("%s", err.text);
    setenv("GPU_EMU_ORDER", orders[i / 2], 1);
    return ops_cuda(i % 2 ? TYPE_BF16 : TYPE_F32);
}

static void upload(const Ops *gpu, const Twin *x) {
    if (x->type == TYPE_FX)
        gpu->upload((floatX *)x->gpu, x->cpu, x->n);
    else
        gpu->upload_bytes(x->gpu, x->cpu, x->n * sizeof(float));
}

float *twin_download(const Ops *gpu, const Twin *x) {
    float *values = mem_alloc(x->n, sizeof(float));
    if (x->type == TYPE_FX)
        gpu->download(values, (const floatX *)x->gpu, x->n);
    else
        gpu->download_bytes(values, x->gpu, x->n * sizeof(float));
    return values;
}

static int until_misaligned;

void twin_misalign(int k) {
    until_misaligned = k;
}

static Twin twin_alloc(const Ops *gpu, ElemType type, size_t n) {
    size_t bytes = elem_bytes(type, gpu->elem_size);
    size_t shift = until_misaligned > 0 && --until_misaligned == 0 ? bytes : 0;
    char *p = gpu->alloc(n * bytes + shift);
    return (Twin){floats_new(n), p + shift, n, type, shift};
}

Twin twin_of(const Ops *gpu, ElemType type, const float *values, size_t n) {
    Twin x = twin_alloc(gpu, type, n);
    for (size_t i = 0; i < n; i++) {
        bool round = type == TYPE_FX && is_bf16(gpu);
        x.cpu[i] = round ? bf16_to_f32(bf16_from_f32(values[i])) : values[i];
    }
    upload(gpu, &x);
    return x;
}

Twin twin_noise(const Ops *gpu, ElemType type, size_t n, uint64_t seed, float scale) {
    float *values = mem_alloc(n, sizeof(float));
    test_noise(values, n, seed, scale);
    Twin x = twin_of(gpu, type, values, n);
    mem_free(values);
    return x;
}

Twin twin_new(const Ops *gpu, ElemType type, size_t n) {
    Twin x = twin_alloc(gpu, type, n);
    upload(gpu, &x);
    return x;
}

Twin twin_null(void) {
    return (Twin){0};
}

void twin_free(TestCtx *t, const Ops *gpu, Twin *x) {
    if (!x->cpu) return;
    floats_free(t, x->cpu);
    gpu->free((char *)x->gpu - x->shift);
    *x = twin_null();
}

int *twin_ints(const Ops *gpu, const int *values, size_t n) {
    int *p = gpu->alloc(n * sizeof(int));
    gpu->upload_bytes(p, values, n * sizeof(int));
    return p;
}

double twin_tol(const Ops *gpu, ElemType type, size_t n) {
    return 2 * sum_tol(n) + (type == TYPE_FX && is_bf16(gpu) ? 0x1p-8 : 0);
}

void twin_check(TestCtx *t, const char *file, int line, const char *what, const Ops *gpu,
                const Twin *x, double rel_tol, double abs_tol) {
    char name[128];
    const char *order = getenv("GPU_EMU_ORDER");
    snprintf(name, sizeof name, "%s (%s, %s)", what, is_bf16(gpu) ? "bf16" : "fp32",
             order ? order : "");
    float *values = twin_download(gpu, x);
    Close c = {.what = name, .n = x->n, .abs_tol = abs_tol, .rel_tol = rel_tol};
    test_close_f32(t, file, line, values, x->cpu, c);
    mem_free(values);
}

void twin_check_each(TestCtx *t, const char *file, int line, const char *what, const Ops *gpu,
                     const Twin *x, double tol, double floor) {
    float *values = twin_download(gpu, x);
    for (size_t i = 0; i < x->n; i++) {
        double a = (double)values[i], b = (double)x->cpu[i];
        bool same = isnan(b) ? isnan(a) : a == b || fabs(a - b) <= tol * (fabs(b) + floor);
        if (same) continue;
        test_fail(t, file, line, "%s[%zu] (%s): %g, expected %g", what, i,
                  is_bf16(gpu) ? "bf16" : "fp32", a, b);
    }
    mem_free(values);
}

void twin_check_past(TestCtx *t, const Ops *gpu, const Twin *x, const float *clean, size_t past,
                     size_t n, size_t head) {
    float *values = twin_download(gpu, x);
    CHECK_SAME_BITS(t, values, clean, past * sizeof(float));
    for (size_t first = past; first < past + n; first += head) {
        bool spoilt = false;
        for (size_t i = first; i < first + head; i++)
            spoilt |= !isfinite(values[i]);
        CHECK_MSG(t, spoilt, "elements %zu to %zu are finite", first, first + head - 1);
    }
    mem_free(values);
}
