// optim.cu - AdamW (Loshchilov and Hutter 2019) and the element-wise parts of Muon (Jordan et al.
// 2024). W elements per thread. The clip factor and the skip flag are read from device memory, so
// the host never waits. A step to be skipped writes nothing.
#include "kernels/cuda/device.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/reduce.cuh"

enum { BLOCK = 256 };

// What an optimizer updates: the values that a model computes with, in P, and their fp32 master.
template <typename P> struct Param {
    P *p;
    float *master;       // NULL: p is its own master
    uint64_t round_key;  // for a bf16 p that is its own master: see Ops.adamw
};

// rng_u64 of gpt/rng.h.
__device__ __forceinline__ uint64_t random_bits(uint64_t key, uint64_t index) {
    uint64_t x = key + (index + 1) * 0x9E3779B97F4A7C15ull;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

// x[0..W), elements i and following, to bf16 values. Infinities and NaN stay what they are.
template <int W> __device__ __forceinline__ void round_at_random(float *x, uint64_t key, size_t i) {
    uint64_t bits = random_bits(key, i / 4) >> 16 * (i % 4);
#pragma unroll
    for (int j = 0; j < W; j++) {
        unsigned u = __float_as_uint(x[j]);
        bool finite = (u & 0x7F800000u) != 0x7F800000u;
        u += (unsigned)(bits >> 16 * j) & 0xFFFFu;
        if (finite) x[j] = __uint_as_float(u & 0xFFFF0000u);
    }
}

template <int W, typename P>
__device__ __forceinline__ void load_param(float *x, Param<P> p, size_t i) {
    if (p.master)
        load_vec<W>(x, p.master + i);
    else
        load_vec<W>(x, p.p + i);
}
template <int W, typename P>
__device__ __forceinline__ void store_param(Param<P> p, size_t i, float *x) {
    if (p.master)
        store_vec<W>(p.master + i, x);
    else if (sizeof(P) == 2)
        round_at_random<W>(x, p.round_key, i);
    store_vec<W>(p.p + i, x);
}

// The first of this thread's W elements. Kernels below have no barrier, so threads may return.
template <int W> __device__ __forceinline__ size_t element_here() {
    return ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
}

template <typename P, int W>
__global__ void adamw_kernel(Param<P> param, float *m, float *v, const float *g, size_t n,
                             AdamWArgs a, const StepState *state) {
    size_t i = element_here<W>();
    if (i >= n || state->skip) return;
    float clip = state->clip, rate = a.lr / a.correction1, root = 1.0f / sqrtf(a.correction2);
    float x[W], m1[W], v1[W], grad[W];
    load_param<W>(x, param, i);
    load_vec<W>(m1, m + i);
    load_vec<W>(v1, v + i);
    load_vec<W>(grad, g + i);
#pragma unroll
    for (int j = 0; j < W; j++) {
        float d = clip * grad[j];
        m1[j] = a.beta1 * m1[j] + (1.0f - a.beta1) * d;
        v1[j] = a.beta2 * v1[j] + (1.0f - a.beta2) * d * d;
        x[j] -= a.lr * a.decay * x[j] + rate * m1[j] / (sqrtf(v1[j]) * root + a.eps);
    }
    store_vec<W>(m + i, m1);
    store_vec<W>(v + i, v1);
    store_param<W>(param, i, x);
}

template <int W>
__global__ void muon_momentum_kernel(float *out, float *momentum, const float *g, size_t n,
                                     float mu, bool nesterov, const StepState *state) {
    size_t i = element_here<W>();
    if (i >= n || state->skip) return;
    float gain = (1.0f - mu) * state->clip, b[W], d[W];
    load_vec<W>(b, momentum + i);
    load_vec<W>(d, g + i);
#pragma unroll
    for (int j = 0; j < W; j++) {
        d[j] *= gain;
        b[j] = mu * b[j] + d[j];
        d[j] = nesterov ? d[j] + mu * b[j] : b[j];
    }
    store_vec<W>(momentum + i, b);
    store_vec<W>(out + i, d);
}

template <int W>
__global__ void scale_copy_kernel(float *out, const float *inp, size_t n, float factor) {
    size_t i = element_here<W>();
    if (i >= n) return;
    float x[W];
    load_vec<W>(x, inp + i);
#pragma unroll
    for (int j = 0; j < W; j++)
        x[j] *= factor;
    store_vec<W>(out + i, x);
}

template <int W> __global__ void axpy_kernel(float *y, const float *x, size_t n, float alpha) {
    size_t i = element_here<W>();
    if (i >= n) return;
    float a[W], b[W];
    load_vec<W>(a, y + i);
    load_vec<W>(b, x + i);
#pragma unroll
    for (int j = 0; j < W; j++)
        a[j] += alpha * b[j];
    store_vec<W>(y + i, a);
}

template <typename P, int W>
__global__ void muon_apply_kernel(Param<P> param, const float *update, size_t n, float lr,
                                  float decay, const StepState *state) {
    size_t i = element_here<W>();
    if (i >= n || state->skip) return;
    float x[W], u[W];
    load_param<W>(x, param, i);
    load_vec<W>(u, update + i);
#pragma unroll
    for (int j = 0; j < W; j++)
        x[j] -= lr * decay * x[j] + lr * u[j];
    store_param<W>(param, i, x);
}

// --- Frobenius norms, in double: each block sums a share of one matrix, then every block that
// scales the matrix adds up the shares in the same order.
__global__ void norm_share_kernel(double *part, const float *x, size_t n, size_t stride,
                                  int shares) {
    SHARED(double, scratch);
    size_t matrix = blockIdx.x / shares, share = blockIdx.x % shares;
    double sum = 0.0;
    for (size_t i = share * blockDim.x + threadIdx.x; i < n; i += (size_t)shares * blockDim.x) {
        double v = (double)x[matrix * stride + i];
        sum += v * v;
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) part[blockIdx.x] = sum;
}

__global__ void norm_scale_kernel(float *x, const double *part, size_t n, size_t stride, int shares,
                                  float eps) {
    SHARED(double, scratch);
    size_t matrix = blockIdx.x / shares, share = blockIdx.x % shares;
    double mine = (int)threadIdx.x < shares ? part[matrix * shares + threadIdx.x] : 0.0;
    float factor = (float)(1.0 / (sqrt(block_sum(mine, scratch)) + (double)eps));
    for (size_t i = share * blockDim.x + threadIdx.x; i < n; i += (size_t)shares * blockDim.x) {
        x[matrix * stride + i] *= factor;
    }
}

static void muon_normalize_cuda(float *x, size_t n, int batch, size_t stride, float eps) {
    size_t shares = min_size(ceil_div(n, 16 * BLOCK), BLOCK), blocks = (size_t)batch * shares;
    double *part = static_cast<double *>(cuda_scratch(blocks * sizeof(double)));
    size_t bytes = WARP * sizeof(double);
    LAUNCH(norm_share_kernel, blocks, BLOCK, bytes, cuda_stream())(part, x, n, stride, (int)shares);
    LAUNCH(norm_scale_kernel, blocks, BLOCK, bytes, cuda_stream())
    (x, part, n, stride, (int)shares, eps);
}

// --- Launchers: four elements per thread where sizes and addresses allow.
template <typename P>
static void launch_adamw(Param<P> p, float *m, float *v, const float *g, size_t n,
                         const AdamWArgs *a, const StepState *state) {
    if (n % 4 == 0 && fits<4>(p.p) && fits<4>(p.master) && fits<4>(m) && fits<4>(v) && fits<4>(g)) {
        LAUNCH((adamw_kernel<P, 4>), ceil_div(n / 4, BLOCK), BLOCK, 0, cuda_stream())
        (p, m, v, g, n, *a, state);
    } else {
        LAUNCH((adamw_kernel<P, 1>), ceil_div(n, BLOCK), BLOCK, 0, cuda_stream())
        (p, m, v, g, n, *a, state);
    }
}

template <typename T>
static void adamw_cuda(void *param, float *master, float *m, float *v, const float *g, size_t n,
                       const AdamWArgs *a, const StepState *state) {
    if (a->type == TYPE_FX)
        launch_adamw(Param<T>{(T *)param, master, a->round_key}, m, v, g, n, a, state);
    else
        launch_adamw(Param<float>{(float *)param, master, 0}, m, v, g, n, a, state);
}

static void muon_momentum_cuda(float *out, float *momentum, const float *g, size_t n, float mu,
                               bool nesterov, const StepState *state) {
    if (n % 4 == 0 && fits<4>(out) && fits<4>(momentum) && fits<4>(g)) {
        LAUNCH(muon_momentum_kernel<4>, ceil_div(n / 4, BLOCK), BLOCK, 0, cuda_stream())
        (out, momentum, g, n, mu, nesterov, state);
    } else {
        LAUNCH(muon_momentum_kernel<1>, ceil_div(n, BLOCK), BLOCK, 0, cuda_stream())
        (out, momentum, g, n, mu, nesterov, state);
    }
}

static void scale_copy_cuda(float *out, const float *x, size_t n, float factor) {
    if (n % 4 == 0 && fits<4>(out) && fits<4>(x)) {
        LAUNCH(scale_copy_kernel<4>, ceil_div(n / 4, BLOCK), BLOCK, 0, cuda_stream())
        (out, x, n, factor);
    } else {
        LAUNCH(scale_copy_kernel<1>, ceil_div(n, BLOCK), BLOCK, 0, cuda_stream())
        (out, x, n, factor);
    }
}

static void axpy_cuda(float *y, const float *x, size_t n, float alpha) {
    if (n % 4 == 0 && fits<4>(y) && fits<4>(x)) {
        LAUNCH(axpy_kernel<4>, ceil_div(n / 4, BLOCK), BLOCK, 0, cuda_stream())(y, x, n, alpha);
    } else {
        LAUNCH(axpy_kernel<1>, ceil_div(n, BLOCK), BLOCK, 0, cuda_stream())(y, x, n, alpha);
    }
}

template <typename P>
static void launch_apply(Param<P> p, const float *update, size_t n, float lr, float decay,
                         const StepState *state) {
    if (n % 4 == 0 && fits<4>(p.p) && fits<4>(p.master) && fits<4>(update)) {
        LAUNCH((muon_apply_kernel<P, 4>), ceil_div(n / 4, BLOCK), BLOCK, 0, cuda_stream())
        (p, update, n, lr, decay, state);
    } else {
        LAUNCH((muon_apply_kernel<P, 1>), ceil_div(n, BLOCK), BLOCK, 0, cuda_stream())
        (p, update, n, lr, decay, state);
    }
}

template <typename T>
static void muon_apply_cuda(void *param, float *master, ElemType type, const float *update,
                            size_t n, float lr, float decay, uint64_t round_key,
                            const StepState *state) {
    if (type == TYPE_FX)
        launch_apply(Param<T>{(T *)param, master, round_key}, update, n, lr, decay, state);
    else
        launch_apply(Param<float>{(float *)param, master, 0}, update, n, lr, decay, state);
}

template <typename T> void optim_ops(Ops *o) {
    o->adamw = adamw_cuda<T>;
    o->muon_momentum = muon_momentum_cuda;
    o->muon_normalize = muon_normalize_cuda;
    o->scale_copy = scale_copy_cuda;
    o->axpy = axpy_cuda;
    o->muon_apply = muon_apply_cuda<T>;
}
template void optim_ops<float>(Ops *);
template void optim_ops<bf16>(Ops *);
