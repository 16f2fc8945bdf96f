// rope.c - rotary position (Su et al. 2021, half-split pairs) and RMS norm of each head.
// A token's cosines are unpacked once for all its heads; the heads are then normalised in the
// cache.
#include <math.h>
#include <string.h>

#include "gpt/util.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/vec.h"

static size_t head_stride(const RopeArgs *a) {
    return a->head_stride ? a->head_stride : (size_t)a->HS;
}

// What one token needs.
typedef struct Token {
    size_t row;
    const float *rope;  // (HS/2, 2) of its position, or NULL
} Token;

static Token token_at(const RopeArgs *a, size_t row) {
    size_t T = (size_t)a->T;
    size_t position = row % T + (a->pos ? (size_t)a->pos[row / T] : 0);
    return (Token){row, a->rope ? a->rope + position * (size_t)a->HS : NULL};
}

// out = inp rotated by +angle (sign 1) or -angle (sign -1), all heads of one token.
static void rotate(float *out, const float *inp, const float *rope, float sign, const RopeArgs *a) {
    size_t half = (size_t)a->HS / 2;
    for (size_t i = 0; i < half; i += LANES) {
        size_t left = half - i;
        VecF c = {0}, s = {0};
        for (size_t l = 0; l < min_size(left, LANES); l++) {
            c[l] = rope[2 * (i + l)];
            s[l] = sign * rope[2 * (i + l) + 1];
        }
        for (int h = 0; h < a->NH; h++) {
            const float *x = inp + (size_t)h * head_stride(a) + i;
            float *y = out + (size_t)h * head_stride(a) + i;
            VecF x1 = vec_get(x, left), x2 = vec_get(x + half, left);
            vec_put(y, x1 * c + x2 * s, left);
            vec_put(y + half, x2 * c - x1 * s, left);
        }
    }
}

static void copy_heads(float *out, const float *inp, const RopeArgs *a) {
    if (out == inp) return;
    for (int h = 0; h < a->NH; h++) {
        size_t at = (size_t)h * head_stride(a);
        memcpy(out + at, inp + at, (size_t)a->HS * sizeof(float));
    }
}

// y /= rms(y); returns 1/rms.
static float normalise(float *y, size_t HS, float eps) {
    VecF sum = {0};
    for (size_t i = 0; i < HS; i += LANES) {
        VecF v = vec_get(y + i, HS - i);
        sum += v * v;
    }
    float rstd = 1 / sqrtf(vec_sum(sum) / (float)HS + eps);
    for (size_t i = 0; i < HS; i += LANES)
        vec_put(y + i, vec_get(y + i, HS - i) * rstd, HS - i);
    return rstd;
}

void qk_norm_rope_forward_cpu(floatX *out, float *rstd, const floatX *inp, const RopeArgs *a) {
    size_t rows = (size_t)a->B * (size_t)a->T, NH = (size_t)a->NH, HS = (size_t)a->HS;
    size_t stride = head_stride(a);
#pragma omp parallel for schedule(static) if (rows * NH * HS > SERIAL_ELEMENTS)
    for (size_t row = 0; row < rows; row++) {
        Token t = token_at(a, row);
        float *y = (float *)out + row * a->ld_out;
        const float *x = (const float *)inp + row * a->ld_inp;
        if (t.rope)
            rotate(y, x, t.rope, 1, a);
        else
            copy_heads(y, x, a);
        for (size_t h = 0; a->norm && h < NH; h++) {
            float r = normalise(y + h * stride, HS, a->eps);
            if (rstd) rstd[row * NH + h] = r;
        }
    }
}

// dinp = rstd (dout - y mean(dout y)): y is its own normalised input.
static void normalise_backward(float *dinp, const float *dout, const float *y, float rstd,
                               size_t HS) {
    VecF sum = {0};
    for (size_t i = 0; i < HS; i += LANES)
        sum += vec_get(dout + i, HS - i) * vec_get(y + i, HS - i);
    float mean = vec_sum(sum) / (float)HS;
    for (size_t i = 0; i < HS; i += LANES) {
        VecF d = vec_get(dout + i, HS - i) - vec_get(y + i, HS - i) * mean;
        vec_put(dinp + i, rstd * d, HS - i);
    }
}

void qk_norm_rope_backward_cpu(floatX *dinp, const floatX *dout, const floatX *y, size_t ld_y,
                               const float *rstd, const RopeArgs *a) {
    size_t rows = (size_t)a->B * (size_t)a->T, NH = (size_t)a->NH, HS = (size_t)a->HS;
    size_t stride = head_stride(a);
#pragma omp parallel for schedule(static) if (rows * NH * HS > SERIAL_ELEMENTS)
    for (size_t row = 0; row < rows; row++) {
        Token t = token_at(a, row);
        float *dx = (float *)dinp + row * a->ld_inp;
        const float *d = (const float *)dout + row * a->ld_out;
        for (size_t h = 0; a->norm && h < NH; h++)
            normalise_backward(dx + h * stride, d + h * stride,
                               (const float *)y + row * ld_y + h * stride, rstd[row * NH + h], HS);
        if (a->norm) d = dx;
        if (t.rope)
            rotate(dx, d, t.rope, -1, a);
        else
            copy_heads(dx, d, a);
    }
}
