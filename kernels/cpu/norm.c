// norm.c - residual add with RMS norm (Zhang and Sennrich 2019) or layer norm (Ba et al. 2016).
// A row is read from memory once; the passes over it that follow find it in the cache.
#include <math.h>

#include "gpt/util.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/vec.h"

// Four vectors at a time, to keep the chains of roundings short.
static float row_sum(const float *x, size_t C) {
    VecF s[4] = {{0}};
    size_t i = 0;
    for (; i + 4 * LANES <= C; i += 4 * LANES) {
        for (int j = 0; j < 4; j++)
            s[j] += vec_load(x + i + j * LANES);
    }
    for (; i < C; i += LANES)
        s[0] += vec_get(x + i, C - i);
    return vec_sum((s[0] + s[1]) + (s[2] + s[3]));
}

static float row_sum_squares(const float *x, size_t C, float mean) {
    VecF s[4] = {{0}};
    size_t i = 0;
    for (; i + 4 * LANES <= C; i += 4 * LANES) {
        for (int j = 0; j < 4; j++) {
            VecF d = vec_load(x + i + j * LANES) - mean;
            s[j] += d * d;
        }
    }
    for (; i < C; i += LANES) {
        VecF d = vec_get(x + i, C - i) - mean;
        if (C - i < LANES) d = vec_select(vec_first((int)(C - i)), d, (VecF){0});
        s[0] += d * d;
    }
    return vec_sum((s[0] + s[1]) + (s[2] + s[3]));
}

typedef struct NormForward {
    float *out, *residual_out, *mean, *rstd;
    const float *residual_in, *inp, *weight, *bias;
    const NormArgs *a;
} NormForward;

static void forward_row(const NormForward *f, size_t row) {
    size_t C = (size_t)f->a->C;
    const float *x = f->residual_in + row * C;
    if (f->inp) {
        const float *inp = f->inp + row * C;
        float *sum = f->residual_out + row * C;
        for (size_t i = 0; i < C; i += LANES)
            vec_put(sum + i, vec_get(x + i, C - i) + vec_get(inp + i, C - i), C - i);
        x = sum;
    }
    bool layer = f->a->kind == NORM_LAYER;
    float mean = layer ? row_sum(x, C) / (float)C : 0;
    float rstd = 1 / sqrtf(row_sum_squares(x, C, mean) / (float)C + f->a->eps);
    float *out = f->out + row * C;
    for (size_t i = 0; i < C; i += LANES) {
        VecF y = (vec_get(x + i, C - i) - mean) * rstd;
        if (f->weight) y *= vec_get(f->weight + i, C - i);
        if (f->bias) y += vec_get(f->bias + i, C - i);
        vec_put(out + i, y, C - i);
    }
    if (f->mean) f->mean[row] = mean;
    if (f->rstd) f->rstd[row] = rstd;
}

void add_norm_forward_cpu(floatX *out, floatX *residual_out, float *mean, float *rstd,
                          const floatX *residual_in, const floatX *inp, const float *weight,
                          const float *bias, const NormArgs *a) {
    NormForward f = {(float *)out,
                     (float *)residual_out,
                     mean,
                     rstd,
                     (const float *)residual_in,
                     (const float *)inp,
                     weight,
                     bias,
                     a};
#pragma omp parallel for schedule(static) if (a->N * (size_t)a->C > SERIAL_ELEMENTS)
    for (size_t row = 0; row < a->N; row++)
        forward_row(&f, row);
}

typedef struct NormBackward {
    float *dresidual;
    const float *dout, *x, *weight, *mean, *rstd;
    const NormArgs *a;
} NormBackward;

// With h = (x - mean) rstd and g = dout weight:
//   dx = rstd (g - h mean(g h))             RMS
//   dx = rstd (g - h mean(g h) - mean(g))   layer
// dweight, dbias (C): sums of this block of rows, or NULL.
static void backward_row(const NormBackward *b, size_t row, float *dweight, float *dbias) {
    size_t C = (size_t)b->a->C;
    bool layer = b->a->kind == NORM_LAYER;
    const float *x = b->x + row * C, *dout = b->dout + row * C;
    float mean = layer ? b->mean[row] : 0, rstd = b->rstd[row];
    VecF sum_g = {0}, sum_gh = {0};
    for (size_t i = 0; i < C; i += LANES) {
        VecF d = vec_get(dout + i, C - i), g = d;
        VecF h = (vec_get(x + i, C - i) - mean) * rstd;
        if (b->weight) g *= vec_get(b->weight + i, C - i);
        sum_g += g;
        sum_gh += g * h;
        if (dweight) vec_put(dweight + i, vec_get(dweight + i, C - i) + d * h, C - i);
        if (dbias) vec_put(dbias + i, vec_get(dbias + i, C - i) + d, C - i);
    }
    float mean_gh = vec_sum(sum_gh) / (float)C, mean_g = layer ? vec_sum(sum_g) / (float)C : 0;
    float *dx = b->dresidual + row * C;
    for (size_t i = 0; i < C; i += LANES) {
        VecF g = vec_get(dout + i, C - i);
        VecF h = (vec_get(x + i, C - i) - mean) * rstd;
        if (b->weight) g *= vec_get(b->weight + i, C - i);
        VecF d = rstd * (g - h * mean_gh - mean_g);
        vec_put(dx + i, vec_get(dx + i, C - i) + d, C - i);
    }
}

void add_norm_backward_cpu(floatX *dresidual, float *dweight, float *dbias, const floatX *dout,
                           const floatX *x, const float *weight, const float *mean,
                           const float *rstd, const NormArgs *a) {
    NormBackward b = {
        (float *)dresidual, (const float *)dout, (const float *)x, weight, mean, rstd, a};
    size_t N = a->N, C = (size_t)a->C, blocks = row_blocks(N);
    bool sums = dweight || dbias;
    float *part = sums ? mem_alloc(2 * blocks * C, sizeof(float)) : NULL;  // (blocks, 2, C)
#pragma omp parallel for schedule(static) if (N * C > SERIAL_ELEMENTS)
    for (size_t i = 0; i < blocks; i++) {
        float *dw = dweight ? part + 2 * i * C : NULL;
        float *db = dbias ? part + (2 * i + 1) * C : NULL;
        size_t end = block_start(N, blocks, i + 1);
        for (size_t row = block_start(N, blocks, i); row < end; row++)
            backward_row(&b, row, dw, db);
    }
    if (dweight) columns_add(dweight, part, 2 * C, blocks, C);
    if (dbias) columns_add(dbias, part + C, 2 * C, blocks, C);
    mem_free(part);
}
