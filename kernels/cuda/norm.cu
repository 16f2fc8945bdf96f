// norm.cu - residual add with RMS norm (Zhang and Sennrich 2019) or layer norm (Ba et al. 2016).
// A row stays in registers, VALUES columns per thread: one warp per row up to 32 * VALUES columns
// (several rows per block), else one block. Statistics are fp32 of the row as it is stored.
#include "kernels/cuda/columns.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/reduce.cuh"

enum { MAX_THREADS = 1024, ROWS_OF_WARPS = 8 };

template <typename T> struct NormForward {
    T *out, *residual_out;
    float *mean, *rstd;
    const T *residual_in, *inp;
    const float *weight, *bias;
    NormArgs a;
};

// Where this thread stands: blocks are (threads of a row, rows).
struct Place {
    int first, step;  // its columns: pieces of W at first, first + step, ...
    size_t row, n_rows;
};
template <int W> __device__ __forceinline__ Place place_here() {
    return {(int)threadIdx.x * W, (int)blockDim.x * W,
            (size_t)blockIdx.x * blockDim.y + threadIdx.y, (size_t)gridDim.x * blockDim.y};
}

// Sum over the threads of a row: a warp, or the whole block.
__device__ __forceinline__ float row_sum(float x, float *scratch) {
    return blockDim.y > 1 ? warp_sum(x) : block_sum(x, scratch);
}

template <typename T, int W, int VALUES> __global__ void add_norm_forward_kernel(NormForward<T> f) {
    SHARED(float, scratch);
    Place at = place_here<W>();
    int C = at.row < f.a.N ? f.a.C : 0;
    size_t row = at.row * f.a.C;
    float x[VALUES], mean = 0.0f, sum = 0.0f;
#pragma unroll
    for (int p = 0, i = at.first; p < VALUES; p += W, i += at.step) {
        if (i >= C) continue;
        load_vec<W>(x + p, f.residual_in + row + i);
        if (!f.inp) continue;
        float y[W];
        load_vec<W>(y, f.inp + row + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            x[p + j] = to_float(from_float<T>(x[p + j] + y[j]));
        store_vec<W>(f.residual_out + row + i, x + p);
    }
    if (f.a.kind == NORM_LAYER) {
#pragma unroll
        for (int p = 0, i = at.first; p < VALUES; p += W, i += at.step) {
#pragma unroll
            for (int j = 0; j < W; j++)
                sum += i < C ? x[p + j] : 0.0f;
        }
        mean = row_sum(sum, scratch) / f.a.C;
        sum = 0.0f;
    }
#pragma unroll
    for (int p = 0, i = at.first; p < VALUES; p += W, i += at.step) {
#pragma unroll
        for (int j = 0; j < W; j++)
            sum += i < C ? (x[p + j] - mean) * (x[p + j] - mean) : 0.0f;
    }
    float rstd = 1.0f / sqrtf(row_sum(sum, scratch) / f.a.C + f.a.eps);
#pragma unroll
    for (int p = 0, i = at.first; p < VALUES; p += W, i += at.step) {
        if (i >= C) continue;
        float w[W], b[W], y[W];
        if (f.weight) load_vec<W>(w, f.weight + i);
        if (f.bias) load_vec<W>(b, f.bias + i);
#pragma unroll
        for (int j = 0; j < W; j++) {
            y[j] = (x[p + j] - mean) * rstd;
            if (f.weight) y[j] *= w[j];
            if (f.bias) y[j] += b[j];
        }
        store_vec<W>(f.out + row + i, y);
    }
    if (C && threadIdx.x == 0) {
        if (f.mean) f.mean[at.row] = mean;
        if (f.rstd) f.rstd[at.row] = rstd;
    }
}

template <typename T> struct NormBackward {
    T *dresidual;
    float *part;  // (rows at a time, 2, C): sums for dweight and dbias, or NULL
    const T *dout, *x;
    const float *weight, *mean, *rstd;
    NormArgs a;
};

// With h = (x - mean) rstd and g = dout weight: dx = rstd (g - h mean(g h) - mean(g)); RMS norm has
// no last term.
template <typename T, int W, int VALUES, bool SUMS>
__global__ void add_norm_backward_kernel(NormBackward<T> b) {
    SHARED(float, scratch);
    Place at = place_here<W>();
    float dweight[SUMS ? VALUES : 1], dbias[SUMS ? VALUES : 1];
#pragma unroll
    for (int p = 0; SUMS && p < VALUES; p++)
        dweight[p] = dbias[p] = 0.0f;
    // Rows of one block end together: none may miss a barrier.
    for (size_t start = at.row - threadIdx.y, r = at.row; start < b.a.N;
         start += at.n_rows, r += at.n_rows) {
        int C = r < b.a.N ? b.a.C : 0;
        size_t row = r * b.a.C;
        float mean = C && b.a.kind == NORM_LAYER ? b.mean[r] : 0.0f, rstd = C ? b.rstd[r] : 0.0f;
        float g[VALUES], h[VALUES], sum_g = 0.0f, sum_gh = 0.0f;
#pragma unroll
        for (int p = 0, i = at.first; p < VALUES; p += W, i += at.step) {
            if (i >= C) continue;
            float w[W];
            load_vec<W>(g + p, b.dout + row + i);
            load_vec<W>(h + p, b.x + row + i);
            if (b.weight) load_vec<W>(w, b.weight + i);
#pragma unroll
            for (int j = p; j < p + W; j++) {
                h[j] = (h[j] - mean) * rstd;
                if (SUMS) dweight[SUMS ? j : 0] += g[j] * h[j], dbias[SUMS ? j : 0] += g[j];
                if (b.weight) g[j] *= w[j - p];
                sum_g += g[j];
                sum_gh += g[j] * h[j];
            }
        }
        float mean_gh = row_sum(sum_gh, scratch) / b.a.C;
        float mean_g = b.a.kind == NORM_LAYER ? row_sum(sum_g, scratch) / b.a.C : 0.0f;
#pragma unroll
        for (int p = 0, i = at.first; p < VALUES; p += W, i += at.step) {
            if (i >= C) continue;
            float dx[W];
            load_vec<W>(dx, b.dresidual + row + i);
#pragma unroll
            for (int j = 0; j < W; j++)
                dx[j] += rstd * (g[p + j] - h[p + j] * mean_gh - mean_g);
            store_vec<W>(b.dresidual + row + i, dx);
        }
    }
#pragma unroll
    for (int p = 0, i = at.first; SUMS && p < VALUES; p += W, i += at.step) {
        if (i >= b.a.C) continue;
        store_vec<W>(b.part + 2 * at.row * b.a.C + i, dweight + p);
        store_vec<W>(b.part + (2 * at.row + 1) * b.a.C + i, dbias + p);
    }
}

// Threads for a row of C columns with VALUES in each.
static dim3 row_block(int C, int values) {
    unsigned threads = (unsigned)round_up(ceil_div((size_t)C, (size_t)values), WARP);
    if (threads > MAX_THREADS) {
        die("CUDA: a norm over %d columns: at most %d are supported", C, values * MAX_THREADS);
    }
    return dim3(threads, threads == WARP ? ROWS_OF_WARPS : 1);
}

enum { FEW = 8, MANY = 32 };  // columns per thread, for rows up to 8192 and for longer ones

template <typename T, int W, int VALUES> static void forward(const NormForward<T> &f) {
    dim3 block = row_block(f.a.C, VALUES);
    LAUNCH((add_norm_forward_kernel<T, W, VALUES>), ceil_div(f.a.N, block.y), block,
           WARP * sizeof(float), cuda_stream())
    (f);
}

template <typename T>
static void add_norm_forward_cuda(floatX *out, floatX *residual_out, float *mean, float *rstd,
                                  const floatX *residual_in, const floatX *inp, const float *weight,
                                  const float *bias, const NormArgs *a) {
    NormForward<T> f = {(T *)out,
                        (T *)residual_out,
                        mean,
                        rstd,
                        (const T *)residual_in,
                        (const T *)inp,
                        weight,
                        bias,
                        *a};
    bool wide = a->C % 8 == 0 && fits<8>(f.out) && fits<8>(f.residual_out) &&
                fits<8>(f.residual_in) && fits<8>(f.inp) && fits<8>(weight) && fits<8>(bias);
    bool few = a->C <= FEW * MAX_THREADS;
    if (wide && few)
        forward<T, 8, FEW>(f);
    else if (wide)
        forward<T, 8, MANY>(f);
    else if (few)
        forward<T, 1, FEW>(f);
    else
        forward<T, 1, MANY>(f);
}

template <typename T, int W, int VALUES>
static void backward(NormBackward<T> b, float *dweight, float *dbias) {
    dim3 block = row_block(b.a.C, VALUES);
    size_t C = (size_t)b.a.C, blocks = ceil_div(b.a.N, block.y), bytes = WARP * sizeof(float);
    if (!dweight && !dbias) {
        LAUNCH((add_norm_backward_kernel<T, W, VALUES, false>), blocks, block, bytes, cuda_stream())
        (b);
        return;
    }
    unsigned per_sm = MAX_THREADS / (block.x * block.y);
    blocks = grid_fill(blocks, per_sm < 8 ? (int)per_sm : 8);
    size_t P = blocks * block.y;
    b.part = static_cast<float *>(cuda_scratch(P * 2 * C * sizeof(float)));
    LAUNCH((add_norm_backward_kernel<T, W, VALUES, true>), blocks, block, bytes, cuda_stream())(b);
    if (dweight) columns_add(dweight, b.part, 2 * C, P, C);
    if (dbias) columns_add(dbias, b.part + C, 2 * C, P, C);
}

template <typename T>
static void add_norm_backward_cuda(floatX *dresidual, float *dweight, float *dbias,
                                   const floatX *dout, const floatX *x, const float *weight,
                                   const float *mean, const float *rstd, const NormArgs *a) {
    NormBackward<T> b = {(T *)dresidual, nullptr, (const T *)dout, (const T *)x, weight, mean,
                         rstd,           *a};
    bool wide =
        a->C % 8 == 0 && fits<8>(b.dresidual) && fits<8>(b.dout) && fits<8>(b.x) && fits<8>(weight);
    bool few = a->C <= FEW * MAX_THREADS;
    if (wide && few)
        backward<T, 8, FEW>(b, dweight, dbias);
    else if (wide)
        backward<T, 8, MANY>(b, dweight, dbias);
    else if (few)
        backward<T, 1, FEW>(b, dweight, dbias);
    else
        backward<T, 1, MANY>(b, dweight, dbias);
}

template <typename T> void norm_ops(Ops *o) {
    o->add_norm_forward = add_norm_forward_cuda<T>;
    o->add_norm_backward = add_norm_backward_cuda<T>;
}
template void norm_ops<float>(Ops *);
template void norm_ops<bf16>(Ops *);
