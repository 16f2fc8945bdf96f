// act.c - activations of the feed-forward layer, and element-wise addition.
//   gelu    x * sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the tanh form of GPT-2
//           (Hendrycks and Gimpel 2016), written so that the negative tail keeps its digits
//   relu2   max(x, 0)^2 (So et al. 2021)
//   swiglu  gate * sigmoid(gate) * up (Shazeer 2020)
#include "gpt/util.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/vexp.h"

#define GELU_SCALE 0.79788456080286535588f
#define GELU_CUBIC 0.044715f

// Beyond +-10 the sigmoid is 0 or 1 in fp32; x^3 would overflow far outside.
static inline VecF gelu_clamp(VecF x) {
    return vec_min(vec_max(x, vec_set(-10.0f)), vec_set(10.0f));
}
// e^(-2u), finite for clamped x.
static inline VecF gelu_exp(VecF x) {
    return vec_exp(-2 * GELU_SCALE * (x + GELU_CUBIC * x * x * x));
}
static inline VecF gelu(VecF x) {
    return x / (1.0f + gelu_exp(gelu_clamp(x)));
}
// With s the sigmoid, 1 - s = e s keeps its digits where s is close to 1.
static inline VecF gelu_grad(VecF x) {
    x = gelu_clamp(x);
    VecF e = gelu_exp(x), s = 1.0f / (1.0f + e);
    VecF du = GELU_SCALE * (1.0f + 3 * GELU_CUBIC * x * x);
    return s + 2.0f * x * s * (e * s) * du;
}

// A stretch of one row: n elements of out and inp (the gate), and of up for SwiGLU.
static void forward_span(float *out, const float *inp, const float *up, ActKind kind, size_t n) {
    switch (kind) {
    case ACT_GELU:
        for (size_t i = 0; i < n; i += LANES)
            vec_put(out + i, gelu(vec_get(inp + i, n - i)), n - i);
        break;
    case ACT_RELU2:
        for (size_t i = 0; i < n; i += LANES) {
            VecF x = vec_max(vec_get(inp + i, n - i), (VecF){0});
            vec_put(out + i, x * x, n - i);
        }
        break;
    case ACT_SWIGLU:
        for (size_t i = 0; i < n; i += LANES) {
            VecF x = vec_get(inp + i, n - i);
            vec_put(out + i, x * vec_sigmoid(x) * vec_get(up + i, n - i), n - i);
        }
        break;
    }
}

static void swiglu_backward_span(float *dgate, float *dup, const float *dout, const float *gate,
                                 const float *up, size_t n) {
    for (size_t i = 0; i < n; i += LANES) {
        VecF x = vec_get(gate + i, n - i), u = vec_get(up + i, n - i);
        VecF d = vec_get(dout + i, n - i), s = vec_sigmoid(x);
        vec_put(dup + i, d * x * s, n - i);
        vec_put(dgate + i, d * u * s * (1.0f + x * (1.0f - s)), n - i);
    }
}

static void backward_span(float *dinp, const float *dout, const float *inp, ActKind kind,
                          size_t n) {
    for (size_t i = 0; i < n; i += LANES) {
        VecF x = vec_get(inp + i, n - i), d = vec_get(dout + i, n - i);
        d *= kind == ACT_GELU ? gelu_grad(x) : 2.0f * vec_max(x, (VecF){0});
        vec_put(dinp + i, d, n - i);
    }
}

void act_forward_cpu(floatX *out, const floatX *inp, ActKind kind, size_t N, int F) {
    bool gated = kind == ACT_SWIGLU;
    size_t rows = gated ? N : 1, width = gated ? (size_t)F : N * (size_t)F;
    size_t spans = ceil_div(width, SPAN);
#pragma omp parallel for schedule(static) if (rows * width > SERIAL_ELEMENTS / 4)
    for (size_t task = 0; task < rows * spans; task++) {
        size_t row = task / spans, i = task % spans * SPAN;
        const float *x = (const float *)inp + row * width * (gated ? 2 : 1) + i;
        forward_span((float *)out + row * width + i, x, gated ? x + width : NULL, kind,
                     min_size(SPAN, width - i));
    }
}

void act_backward_cpu(floatX *dinp, const floatX *dout, const floatX *inp, ActKind kind, size_t N,
                      int F) {
    bool gated = kind == ACT_SWIGLU;
    size_t rows = gated ? N : 1, width = gated ? (size_t)F : N * (size_t)F;
    size_t spans = ceil_div(width, SPAN);
#pragma omp parallel for schedule(static) if (rows * width > SERIAL_ELEMENTS / 4)
    for (size_t task = 0; task < rows * spans; task++) {
        size_t row = task / spans, i = task % spans * SPAN, n = min_size(SPAN, width - i);
        size_t at = row * width * (gated ? 2 : 1) + i;
        float *dx = (float *)dinp + at;
        const float *x = (const float *)inp + at, *d = (const float *)dout + row * width + i;
        if (gated)
            swiglu_backward_span(dx, dx + width, d, x, x + width, n);
        else
            backward_span(dx, d, x, kind, n);
    }
}

void add_cpu(floatX *out, const floatX *a, const floatX *b, size_t n) {
    float *y = (float *)out;
    const float *x1 = (const float *)a, *x2 = (const float *)b;
#pragma omp parallel for schedule(static) if (n > SERIAL_ELEMENTS)
    for (size_t i0 = 0; i0 < n; i0 += SPAN) {
        size_t end = min_size(i0 + SPAN, n);
        for (size_t i = i0; i < end; i += LANES)
            vec_put(y + i, vec_get(x1 + i, end - i) + vec_get(x2 + i, end - i), end - i);
    }
}
