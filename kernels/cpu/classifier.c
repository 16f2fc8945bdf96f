// classifier.c - soft-cap, softmax and cross-entropy on rows of logits, with the gradient in place.
// A row is read from memory once and stays in the second-level cache for the passes that follow.
// NaN or +inf in a row makes its loss not finite; nothing is replaced or skipped.
#include <assert.h>
#include <math.h>
#include <string.h>

#include "gpt/util.h"
#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/reduce.h"
#include "kernels/cpu/vexp.h"

static inline VecF cap_vec(VecF x, float cap) {
    return cap * vec_tanh(x * (1 / cap));
}
static float cap_one(float x, float cap) {
    return cap > 0 ? cap_vec(vec_set(x), cap)[0] : x;
}

// The largest of the values that are not NaN.
static float row_largest(const float *x, size_t V) {
    VecF best[4];
    for (int j = 0; j < 4; j++)
        best[j] = vec_set(-INFINITY);
    size_t i = 0;
    for (; i + 4 * LANES <= V; i += 4 * LANES) {
        for (int j = 0; j < 4; j++)
            best[j] = vec_max(best[j], vec_load(x + i + j * LANES));
    }
    for (; i + LANES <= V; i += LANES)
        best[0] = vec_max(best[0], vec_load(x + i));
    for (int j = 1; j < 4; j++)
        best[0] = vec_max(best[0], best[j]);
    float largest = vec_largest(best[0]);
    for (; i < V; i++)
        largest = x[i] > largest ? x[i] : largest;
    return largest;
}

// Returns the sum of e = exp(z - top), z the capped logits. With keep, x becomes e dz/dx.
// Sums of 64 vectors go to double, so that a large vocabulary costs no digits.
static double row_exp(float *x, size_t V, float top, float cap, bool keep) {
    enum { STRETCH = 64 * LANES };
    double sum = 0;
    for (size_t i0 = 0; i0 < V; i0 += STRETCH) {
        size_t end = min_size(i0 + STRETCH, V);
        VecF s = {0};
        for (size_t i = i0; i < end; i += LANES) {
            VecF z = vec_get(x + i, end - i), dz = vec_set(1);
            if (cap > 0) {
                VecF y = vec_tanh(z * (1 / cap));
                z = cap * y;
                dz = 1.0f - y * y;
            }
            VecF e = vec_exp(z - top);
            if (end - i < LANES) e = vec_select(vec_first((int)(end - i)), e, (VecF){0});
            s += e;
            if (keep) vec_put(x + i, e * dz, end - i);
        }
        sum += (double)vec_sum(s);
    }
    return sum;
}

static void row_scale(float *x, size_t V, float factor) {
    for (size_t i = 0; i < V; i += LANES)
        vec_put(x + i, vec_get(x + i, V - i) * factor, V - i);
}

typedef struct Loss {
    size_t V, Vp;
    float cap, dscale;
    bool backward;
} Loss;

static float classify_row(float *x, int target, const Loss *a) {
    if (target < 0) {
        if (a->backward) memset(x, 0, a->Vp * sizeof(float));
        return 0;
    }
    assert((size_t)target < a->V);
    float z = cap_one(x[target], a->cap);
    float dz = a->cap > 0 ? 1 - (z / a->cap) * (z / a->cap) : 1;
    float top = cap_one(row_largest(x, a->V), a->cap);
    double sum = row_exp(x, a->V, top, a->cap, a->backward);
    if (a->backward) {
        row_scale(x, a->V, (float)((double)a->dscale / sum));
        x[target] -= a->dscale * dz;
        memset(x + a->V, 0, (a->Vp - a->V) * sizeof(float));
    }
    return (float)(log(sum) + ((double)top - (double)z));
}

void classifier_cpu(floatX *logits, float *losses, const int *targets, size_t n, int V, int Vp,
                    float softcap, float dscale, bool backward) {
    Loss a = {(size_t)V, (size_t)Vp, softcap, dscale, backward};
#pragma omp parallel for schedule(static) if (n * a.Vp > SERIAL_ELEMENTS / 4)
    for (size_t row = 0; row < n; row++)
        losses[row] = classify_row((float *)logits + row * a.Vp, targets[row], &a);
}

void softcap_cpu(floatX *logits, size_t n, float softcap) {
    if (!(softcap > 0)) return;
    float *x = (float *)logits;
#pragma omp parallel for schedule(static) if (n > SERIAL_ELEMENTS / 4)
    for (size_t i0 = 0; i0 < n; i0 += SPAN) {
        size_t end = min_size(i0 + SPAN, n);
        for (size_t i = i0; i < end; i += LANES)
            vec_put(x + i, cap_vec(vec_get(x + i, end - i), softcap), end - i);
    }
}

void loss_add_cpu(StepState *state, const float *losses, size_t n, double scale) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)losses[i];
    state->loss_sum += scale * sum;
}
