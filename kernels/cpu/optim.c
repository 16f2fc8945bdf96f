// optim.c - AdamW (Loshchilov and Hutter 2019) and the element-wise parts of Muon (Jordan et al.
// 2024). Plain loops over fixed spans: compilers vectorise them, square roots included.
// Nothing is written when the state says that the step is to be skipped.
#include <assert.h>
#include <math.h>

#include "gpt/util.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/reduce.h"

static float *as_f32(void *param, ElemType type) {
    assert(type == TYPE_F32 || type == TYPE_FX);
    (void)type;
    return param;
}

// copy: the parameter that follows its master p, or p itself.
typedef struct AdamSpan {
    float *p, *copy, *m, *v;
    const float *g;
    size_t n;
} AdamSpan;

static void adam_span(AdamSpan s, const AdamWArgs *a, float clip) {
    float b1 = a->beta1, b2 = a->beta2, eps = a->eps, decay = a->lr * a->decay;
    float rate = a->lr / a->correction1, root = 1 / sqrtf(a->correction2);
    float *restrict p = s.p, *restrict m = s.m, *restrict v = s.v;
    const float *restrict g = s.g;
    for (size_t i = 0; i < s.n; i++) {
        float grad = clip * g[i];
        float m1 = b1 * m[i] + (1 - b1) * grad;
        float v1 = b2 * v[i] + (1 - b2) * grad * grad;
        m[i] = m1;
        v[i] = v1;
        p[i] -= decay * p[i] + rate * m1 / (sqrtf(v1) * root + eps);
    }
    for (size_t i = 0; s.copy != s.p && i < s.n; i++)
        s.copy[i] = s.p[i];
}

void adamw_cpu(void *param, float *master, float *m, float *v, const float *g, size_t n,
               const AdamWArgs *a, const StepState *state) {
    if (state->skip) return;
    float *copy = as_f32(param, a->type), *p = master ? master : copy, clip = state->clip;
#pragma omp parallel for schedule(static) if (n > SERIAL_ELEMENTS)
    for (size_t i = 0; i < n; i += SPAN) {
        AdamSpan s = {p + i, copy + i, m + i, v + i, g + i, min_size(SPAN, n - i)};
        adam_span(s, a, clip);
    }
}

static void momentum_span(float *restrict out, float *restrict momentum, const float *restrict g,
                          size_t n, float mu, float gain, bool nesterov) {
    for (size_t i = 0; i < n; i++) {
        float grad = gain * g[i], next = mu * momentum[i] + grad;
        momentum[i] = next;
        out[i] = nesterov ? grad + mu * next : next;
    }
}

void muon_momentum_cpu(float *out, float *momentum, const float *g, size_t n, float mu,
                       bool nesterov, const StepState *state) {
    if (state->skip) return;
    float gain = (1 - mu) * state->clip;
#pragma omp parallel for schedule(static) if (n > SERIAL_ELEMENTS)
    for (size_t i = 0; i < n; i += SPAN)
        momentum_span(out + i, momentum + i, g + i, min_size(SPAN, n - i), mu, gain, nesterov);
}

// out may be x, so no restrict.
static void scale_span(float *out, const float *x, size_t n, float factor) {
    for (size_t i = 0; i < n; i++)
        out[i] = x[i] * factor;
}

void scale_copy_cpu(float *out, const float *x, size_t n, float factor) {
#pragma omp parallel for schedule(static) if (n > SERIAL_ELEMENTS)
    for (size_t i = 0; i < n; i += SPAN)
        scale_span(out + i, x + i, min_size(SPAN, n - i), factor);
}

static void axpy_span(float *restrict y, const float *restrict x, size_t n, float alpha) {
    for (size_t i = 0; i < n; i++)
        y[i] += alpha * x[i];
}

void axpy_cpu(float *y, const float *x, size_t n, float alpha) {
#pragma omp parallel for schedule(static) if (n > SERIAL_ELEMENTS)
    for (size_t i = 0; i < n; i += SPAN)
        axpy_span(y + i, x + i, min_size(SPAN, n - i), alpha);
}

static void normalize_one(float *x, size_t n, float eps) {
    double norm = sqrt(sum_squares(x, n));
    scale_copy_cpu(x, x, n, (float)(1 / (norm + (double)eps)));
}

// One large matrix is shared by all threads; of many small ones each thread takes some.
void muon_normalize_cpu(float *x, size_t n, int batch, size_t stride, float eps) {
#pragma omp parallel for schedule(static) if (batch > 1 && n < ((size_t)1 << 20))
    for (int i = 0; i < batch; i++)
        normalize_one(x + (size_t)i * stride, n, eps);
}

static void apply_span(float *restrict p, const float *restrict update, size_t n, float lr,
                       float decay) {
    for (size_t i = 0; i < n; i++)
        p[i] -= lr * decay * p[i] + lr * update[i];
}

void muon_apply_cpu(void *param, float *master, ElemType type, const float *update, size_t n,
                    float lr, float decay, uint64_t round_key, const StepState *state) {
    (void)round_key;  // parameters are fp32
    if (state->skip) return;
    float *copy = as_f32(param, type), *p = master ? master : copy;
#pragma omp parallel for schedule(static) if (n > SERIAL_ELEMENTS)
    for (size_t i = 0; i < n; i += SPAN) {
        size_t span = min_size(SPAN, n - i);
        apply_span(p + i, update + i, span, lr, decay);
        if (p != copy) scale_span(copy + i, p + i, span, 1);
    }
}
