// grad.cu - the scalars of a step: loss, gradient norm, clip factor, and whether to skip.
// Sums are in double and in a fixed order: blocks leave their shares in scratch, one block adds
// them.
#include "kernels/cuda/device.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/reduce.cuh"

enum { BLOCK = 256, BLOCK_LOSS = 1024 };

__global__ void step_begin_kernel(StepState *state) {
    StepState start = {0.0, 0.0, 0.0f, 1.0f, 0, -1};
    if (threadIdx.x == 0) *state = start;
}

// Squares of finite floats cannot overflow a double: the sum is finite exactly when all values are.
__global__ void sumsq_share_kernel(double *part, const float *g, size_t n) {
    SHARED(double, scratch);
    double sum = 0.0;
    size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        sum += (double)g[i] * (double)g[i];
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

__global__ void sumsq_add_kernel(StepState *state, const double *part, int n, int tensor) {
    SHARED(double, scratch);
    double sum = 0.0;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        sum += part[i];
    sum = block_sum(sum, scratch);
    if (threadIdx.x > 0) return;
    state->grad_sumsq += sum;
    bool is_bad = !(sum <= 1.7e308);
    if (is_bad && (state->first_bad < 0 || tensor < state->first_bad)) state->first_bad = tensor;
}

__global__ void grad_finish_kernel(StepState *state, float max_norm) {
    if (threadIdx.x > 0) return;
    double norm = sqrt(state->grad_sumsq), limit = (double)max_norm;
    state->grad_norm = (float)norm;
    state->clip = limit > 0.0 && norm > limit ? (float)(limit / norm) : 1.0f;
    bool finite = norm <= (double)3.4028235e38f && state->loss_sum - state->loss_sum == 0.0;
    state->skip = !finite;
}

__global__ void loss_add_kernel(StepState *state, const float *losses, size_t n, double scale) {
    SHARED(double, scratch);
    double sum = 0.0;
    for (size_t i = threadIdx.x; i < n; i += blockDim.x)
        sum += (double)losses[i];
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) state->loss_sum += scale * sum;
}

// Threads for n elements: whole warps, no more than there is work for.
static unsigned threads_for(size_t n, size_t most) {
    return (unsigned)min_size(round_up(n, WARP), most);
}

static void step_begin_cuda(StepState *state) {
    LAUNCH(step_begin_kernel, 1, WARP, 0, cuda_stream())(state);
}

static void grad_sumsq_cuda(StepState *state, const float *g, size_t n, int tensor) {
    size_t blocks = grid_fill(ceil_div(n, 4 * BLOCK), 8);
    double *part = static_cast<double *>(cuda_scratch(blocks * sizeof(double)));
    LAUNCH(sumsq_share_kernel, blocks, threads_for(n, BLOCK), WARP * sizeof(double), cuda_stream())
    (part, g, n);
    LAUNCH(sumsq_add_kernel, 1, threads_for(blocks, BLOCK), WARP * sizeof(double), cuda_stream())
    (state, part, (int)blocks, tensor);
}

static void grad_finish_cuda(StepState *state, float max_norm) {
    LAUNCH(grad_finish_kernel, 1, WARP, 0, cuda_stream())(state, max_norm);
}

static void loss_add_cuda(StepState *state, const float *losses, size_t n, double scale) {
    LAUNCH(loss_add_kernel, 1, threads_for(n, BLOCK_LOSS), WARP * sizeof(double), cuda_stream())
    (state, losses, n, scale);
}

template <typename T> void grad_ops(Ops *o) {
    o->step_begin = step_begin_cuda;
    o->grad_sumsq = grad_sumsq_cuda;
    o->grad_finish = grad_finish_cuda;
    o->loss_add = loss_add_cuda;
}
template void grad_ops<float>(Ops *);
template void grad_ops<bf16>(Ops *);
