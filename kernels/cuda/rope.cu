// rope.cu - rotary position (Su et al. 2021, half-split pairs) and RMS norm of each head.
// A head is read once, by a group of 2, 4, ... 32 neighbouring lanes that keep it in registers;
// both halves of a pair lie in the same thread.
#include "kernels/cuda/device.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/rope.cuh"

enum { BLOCK = 256 };

template <typename T> struct RopeCall {
    T *out;  // (dinp in backward)
    float *rstd;
    const T *inp, *y;  // (inp is dout in backward)
    size_t ld_out, ld_inp, ld_y, heads;
    int lanes;
    RopeArgs a;
};

// The head of this thread's group.
struct Head {
    size_t index, row;   // of all heads; of all tokens
    int h, first, step;  // head; pairs of this lane: pieces of W at first, first + step, ...
    int pairs;           // 0 behind the last head
    const float *rope;   // (HS/2, 2) of the position, or NULL
};
template <int W>
__device__ __forceinline__ Head head_here(const RopeArgs &a, int lanes, size_t heads) {
    size_t index = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / lanes;
    Head at = {index, index / a.NH, (int)(index % a.NH), (int)(threadIdx.x % lanes) * W, lanes * W,
               0,     nullptr};
    if (index >= heads) return at;
    at.pairs = (a.HS + 1) / 2;
    if (a.rope) {
        size_t position = at.row % a.T + (a.pos ? a.pos[at.row / a.T] : 0);
        at.rope = a.rope + position * a.HS;
    }
    return at;
}

template <typename T, int W, int VALUES>
__global__ void qk_norm_rope_forward_kernel(RopeCall<T> c) {
    Head at = head_here<W>(c.a, c.lanes, c.heads);
    const T *inp = c.inp + at.row * c.ld_inp + (size_t)at.h * c.a.head_stride;
    T *out = c.out + at.row * c.ld_out + (size_t)at.h * c.a.head_stride;
    float x[2][VALUES], sum = 0.0f;
#pragma unroll
    for (int p = 0, i = at.first; p < VALUES; p += W, i += at.step) {
        if (i >= at.pairs) continue;
        load_pairs<W>(x[0] + p, x[1] + p, inp, i, c.a.HS);
        if (at.rope) rotate_pairs<W>(x[0] + p, x[1] + p, at.rope + 2 * i, 1.0f);
#pragma unroll
        for (int j = p; j < p + W; j++)
            sum += x[0][j] * x[0][j] + x[1][j] * x[1][j];
    }
    float rstd = 1.0f;
    if (c.a.norm) {
        rstd = 1.0f / sqrtf(group_sum(sum, c.lanes) / c.a.HS + c.a.eps);
        if (c.rstd && at.pairs && at.first == 0) c.rstd[at.index] = rstd;
    }
#pragma unroll
    for (int p = 0, i = at.first; p < VALUES; p += W, i += at.step) {
        if (i >= at.pairs) continue;
#pragma unroll
        for (int j = p; j < p + W; j++)
            x[0][j] *= rstd, x[1][j] *= rstd;
        store_pairs<W>(out, x[0] + p, x[1] + p, i, c.a.HS);
    }
}

// With y = x / rms(x) and d = dy: dx = rstd (d - y mean(d y)), then the rotation backwards.
template <typename T, int W, int VALUES>
__global__ void qk_norm_rope_backward_kernel(RopeCall<T> c) {
    Head at = head_here<W>(c.a, c.lanes, c.heads);
    size_t in_row = (size_t)at.h * c.a.head_stride;
    float d[2][VALUES], y[2][VALUES], sum = 0.0f;
#pragma unroll
    for (int p = 0, i = at.first; p < VALUES; p += W, i += at.step) {
        if (i >= at.pairs) continue;
        load_pairs<W>(d[0] + p, d[1] + p, c.inp + at.row * c.ld_inp + in_row, i, c.a.HS);
        if (!c.a.norm) continue;
        load_pairs<W>(y[0] + p, y[1] + p, c.y + at.row * c.ld_y + in_row, i, c.a.HS);
#pragma unroll
        for (int j = p; j < p + W; j++)
            sum += d[0][j] * y[0][j] + d[1][j] * y[1][j];
    }
    float rstd = 1.0f, mean = 0.0f;
    if (c.a.norm) {
        mean = group_sum(sum, c.lanes) / c.a.HS;
        if (at.pairs) rstd = c.rstd[at.index];
    }
#pragma unroll
    for (int p = 0, i = at.first; p < VALUES; p += W, i += at.step) {
        if (i >= at.pairs) continue;
#pragma unroll
        for (int j = p; c.a.norm && j < p + W; j++) {
            d[0][j] = rstd * (d[0][j] - y[0][j] * mean);
            d[1][j] = rstd * (d[1][j] - y[1][j] * mean);
        }
        if (at.rope) rotate_pairs<W>(d[0] + p, d[1] + p, at.rope + 2 * i, -1.0f);
        store_pairs<W>(c.out + at.row * c.ld_out + in_row, d[0] + p, d[1] + p, i, c.a.HS);
    }
}

template <typename T, int W, int VALUES> static void launch(const RopeCall<T> &c, bool forward) {
    size_t blocks = ceil_div(c.heads * (size_t)c.lanes, BLOCK);
    if (forward) {
        LAUNCH((qk_norm_rope_forward_kernel<T, W, VALUES>), blocks, BLOCK, 0, cuda_stream())(c);
    } else {
        LAUNCH((qk_norm_rope_backward_kernel<T, W, VALUES>), blocks, BLOCK, 0, cuda_stream())(c);
    }
}

enum { FEW = 8, MANY = 32 };  // pairs in a thread, for heads up to 512 values and up to 2048

template <typename T> static void launch_any(RopeCall<T> c, bool forward) {
    int HS = c.a.HS, pairs = (HS + 1) / 2;
    if (!c.a.head_stride) c.a.head_stride = (size_t)HS;
    bool wide = HS % 16 == 0 && c.a.head_stride % 8 == 0 && c.ld_inp % 8 == 0 &&
                c.ld_out % 8 == 0 && c.ld_y % 8 == 0 && fits<8>(c.inp) && fits<8>(c.out) &&
                fits<8>(c.y) && fits<8>(c.a.rope);
    int pieces = wide ? pairs / 8 : pairs;
    c.heads = (size_t)c.a.B * c.a.T * c.a.NH;
    for (c.lanes = 2; c.lanes < WARP && c.lanes < pieces;)
        c.lanes *= 2;
    if (pairs > MANY * WARP)
        die("CUDA: heads of %d values: at most %d are supported", HS, 2 * MANY * WARP);
    bool few = pairs <= FEW * c.lanes;
    if (wide && few)
        launch<T, 8, FEW>(c, forward);
    else if (wide)
        launch<T, 8, MANY>(c, forward);
    else if (few)
        launch<T, 1, FEW>(c, forward);
    else
        launch<T, 1, MANY>(c, forward);
}

template <typename T>
static void qk_norm_rope_forward_cuda(floatX *out, float *rstd, const floatX *inp,
                                      const RopeArgs *a) {
    launch_any<T>({(T *)out, rstd, (const T *)inp, nullptr, a->ld_out, a->ld_inp, 0, 0, 0, *a},
                  true);
}

template <typename T>
static void qk_norm_rope_backward_cuda(floatX *dinp, const floatX *dout, const floatX *y,
                                       size_t ld_y, const float *rstd, const RopeArgs *a) {
    launch_any<T>({(T *)dinp, const_cast<float *>(rstd), (const T *)dout, (const T *)y, a->ld_inp,
                   a->ld_out, ld_y, 0, 0, *a},
                  false);
}

template <typename T> void rope_ops(Ops *o) {
    o->qk_norm_rope_forward = qk_norm_rope_forward_cuda<T>;
    o->qk_norm_rope_backward = qk_norm_rope_backward_cuda<T>;
}
template void rope_ops<float>(Ops *);
template void rope_ops<bf16>(Ops *);
