// columns.cu - see columns.h. A block sums 32 columns; its 32 warps take every 32nd row each, and
// the first warp adds up what they found.
#include "kernels/cuda/columns.h"

#include "kernels/cuda/ptx.cuh"

__global__ void columns_add_kernel(float *out, const float *part, size_t ld, size_t P, size_t C) {
    SHARED(float, sums);
    int lane = threadIdx.x, warp = threadIdx.y, n_warps = blockDim.y;
    size_t col = (size_t)blockIdx.x * WARP + lane;
    float sum = 0.0f;
    for (size_t row = warp; col < C && row < P; row += n_warps)
        sum += part[row * ld + col];
    sums[warp * WARP + lane] = sum;
    __syncthreads();
    if (warp == 0 && col < C) {
        sum = 0.0f;
        for (int w = 0; w < n_warps; w++)
            sum += sums[w * WARP + lane];
        out[col] += sum;
    }
}

void columns_add(float *out, const float *part, size_t ld, size_t P, size_t C) {
    unsigned n_warps = P < 32 ? (unsigned)P : 32;
    LAUNCH(columns_add_kernel, ceil_div(C, WARP), dim3(WARP, n_warps),
           n_warps * WARP * sizeof(float), cuda_stream())
    (out, part, ld, P, C);
}
