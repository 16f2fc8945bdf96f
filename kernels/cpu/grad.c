// grad.c - the scalars of a step: loss, gradient norm, clip factor, and whether to skip.
// Sums are in double, so that the norm does not depend on how parameters are grouped.
#include <math.h>

#include "kernels/cpu/ops_cpu.h"
#include "kernels/cpu/reduce.h"

void step_begin_cpu(StepState *state) {
    *state = (StepState){.clip = 1, .first_bad = -1};
}

// Squares of finite floats cannot overflow a double: the sum is finite exactly when all values are.
void grad_sumsq_cpu(StepState *state, const float *g, size_t n, int tensor) {
    double sum = sum_squares(g, n);
    state->grad_sumsq += sum;
    if (isfinite(sum)) return;
    if (state->first_bad < 0 || tensor < state->first_bad) state->first_bad = tensor;
}

void grad_finish_cpu(StepState *state, float max_norm) {
    double norm = sqrt(state->grad_sumsq), limit = (double)max_norm;
    state->grad_norm = (float)norm;
    state->clip = limit > 0 && norm > limit ? (float)(limit / norm) : 1;
    state->skip = !isfinite(state->grad_norm) || !isfinite(state->loss_sum);
}
