// act.cu - activations of the feed-forward layer, and element-wise addition.
//   gelu    x * sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the tanh form of GPT-2
//           (Hendrycks and Gimpel 2016), written so that the negative tail keeps its digits
//   relu2   max(x, 0)^2 (So et al. 2021)
//   swiglu  gate * sigmoid(gate) * up (Shazeer 2020)
// NaN passes through all of them.
#include "kernels/cuda/device.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/ptx.cuh"

enum { BLOCK = 256 };

// e^(-2u), finite: beyond +-10 the sigmoid is 0 or 1 in fp32.
__device__ __forceinline__ float gelu_clamp(float x) {
    return x < -10.0f ? -10.0f : x > 10.0f ? 10.0f : x;
}
__device__ __forceinline__ float gelu_exp(float x) {
    const float scale = 0.79788456080286535588f;
    return expf(-2.0f * scale * (x + 0.044715f * x * x * x));
}

template <ActKind KIND> __device__ __forceinline__ float act(float x, float up) {
    if (KIND == ACT_GELU) return x / (1.0f + gelu_exp(gelu_clamp(x)));
    if (KIND == ACT_RELU2) return x <= 0.0f ? 0.0f : x * x;
    return x / (1.0f + expf(-x)) * up;
}

// dx and dup from dout. With s the sigmoid, 1 - s = e s keeps its digits where s is close to 1.
template <ActKind KIND>
__device__ __forceinline__ void act_grad(float &dx, float &dup, float d, float x, float up) {
    if (KIND == ACT_GELU) {
        const float scale = 0.79788456080286535588f;
        x = gelu_clamp(x);
        float e = gelu_exp(x), s = 1.0f / (1.0f + e);
        dx = d * (s + 2.0f * x * s * (e * s) * scale * (1.0f + 3.0f * 0.044715f * x * x));
    } else if (KIND == ACT_RELU2) {
        dx = x <= 0.0f ? 0.0f : 2.0f * x * d;
    } else {
        float s = 1.0f / (1.0f + expf(-x));
        dup = d * x * s;
        dx = d * up * s * (1.0f + x * (1.0f - s));
    }
}

// The element of this thread in out (N, F), and of its gate in inp (N, 2F) for SwiGLU.
template <ActKind KIND, int W> struct Element {
    size_t i, gate;
    __device__ Element(size_t F) {
        i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
        gate = KIND == ACT_SWIGLU ? i + i / F * F : i;
    }
};

template <typename T, ActKind KIND, int W>
__global__ void act_forward_kernel(T *out, const T *inp, size_t n, size_t F) {
    Element<KIND, W> at(F);
    if (at.i >= n) return;
    float x[W], up[W] = {};
    load_vec<W>(x, inp + at.gate);
    if (KIND == ACT_SWIGLU) load_vec<W>(up, inp + at.gate + F);
#pragma unroll
    for (int j = 0; j < W; j++)
        x[j] = act<KIND>(x[j], up[j]);
    store_vec<W>(out + at.i, x);
}

template <typename T, ActKind KIND, int W>
__global__ void act_backward_kernel(T *dinp, const T *dout, const T *inp, size_t n, size_t F) {
    Element<KIND, W> at(F);
    if (at.i >= n) return;
    float x[W], up[W] = {}, d[W];
    load_vec<W>(x, inp + at.gate);
    load_vec<W>(d, dout + at.i);
    if (KIND == ACT_SWIGLU) load_vec<W>(up, inp + at.gate + F);
#pragma unroll
    for (int j = 0; j < W; j++)
        act_grad<KIND>(x[j], up[j], d[j], x[j], up[j]);
    store_vec<W>(dinp + at.gate, x);
    if (KIND == ACT_SWIGLU) store_vec<W>(dinp + at.gate + F, up);
}

template <typename T, int W> __global__ void add_kernel(T *out, const T *a, const T *b, size_t n) {
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    if (i >= n) return;
    float x[W], y[W];
    load_vec<W>(x, a + i);
    load_vec<W>(y, b + i);
#pragma unroll
    for (int j = 0; j < W; j++)
        x[j] += y[j];
    store_vec<W>(out + i, x);
}

// dout NULL: forward.
template <typename T, ActKind KIND>
static void launch(T *to, const T *dout, const T *inp, size_t N, int F) {
    size_t n = N * (size_t)F, f = (size_t)F;
    bool rows = KIND == ACT_SWIGLU ? F % 8 == 0 : n % 8 == 0;
    bool wide = rows && fits<8>(to) && fits<8>(dout) && fits<8>(inp);
    size_t blocks = ceil_div(wide ? n / 8 : n, BLOCK);
    cudaStream_t s = cuda_stream();
    if (dout && wide)
        LAUNCH((act_backward_kernel<T, KIND, 8>), blocks, BLOCK, 0, s)(to, dout, inp, n, f);
    else if (dout)
        LAUNCH((act_backward_kernel<T, KIND, 1>), blocks, BLOCK, 0, s)(to, dout, inp, n, f);
    else if (wide)
        LAUNCH((act_forward_kernel<T, KIND, 8>), blocks, BLOCK, 0, s)(to, inp, n, f);
    else
        LAUNCH((act_forward_kernel<T, KIND, 1>), blocks, BLOCK, 0, s)(to, inp, n, f);
}

template <typename T>
static void act_any(T *to, const T *dout, const T *inp, ActKind kind, size_t N, int F) {
    switch (kind) {
    case ACT_GELU:
        launch<T, ACT_GELU>(to, dout, inp, N, F);
        break;
    case ACT_RELU2:
        launch<T, ACT_RELU2>(to, dout, inp, N, F);
        break;
    case ACT_SWIGLU:
        launch<T, ACT_SWIGLU>(to, dout, inp, N, F);
        break;
    }
}

template <typename T>
static void act_forward_cuda(floatX *out, const floatX *inp, ActKind kind, size_t N, int F) {
    act_any((T *)out, (const T *)nullptr, (const T *)inp, kind, N, F);
}

template <typename T>
static void act_backward_cuda(floatX *dinp, const floatX *dout, const floatX *inp, ActKind kind,
                              size_t N, int F) {
    act_any((T *)dinp, (const T *)dout, (const T *)inp, kind, N, F);
}

template <typename T>
static void add_cuda(floatX *out, const floatX *a, const floatX *b, size_t n) {
    T *y = (T *)out;
    const T *x1 = (const T *)a, *x2 = (const T *)b;
    if (n % 8 == 0 && fits<8>(y) && fits<8>(x1) && fits<8>(x2)) {
        LAUNCH((add_kernel<T, 8>), ceil_div(n / 8, BLOCK), BLOCK, 0, cuda_stream())(y, x1, x2, n);
    } else {
        LAUNCH((add_kernel<T, 1>), ceil_div(n, BLOCK), BLOCK, 0, cuda_stream())(y, x1, x2, n);
    }
}

template <typename T> void act_ops(Ops *o) {
    o->act_forward = act_forward_cuda<T>;
    o->act_backward = act_backward_cuda<T>;
    o->add = add_cuda<T>;
}
template void act_ops<float>(Ops *);
template void act_ops<bf16>(Ops *);
