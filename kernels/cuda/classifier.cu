// classifier.cu - soft-cap, softmax and cross-entropy on rows of logits, with the gradient in
// place. One block per row. The maximum and the sum of exponentials come from one pass over the row
// (Milakov and Gimelshein 2018); the second pass, for the gradient, finds the row in the
// second-level cache. NaN or +inf in a row makes its loss not finite; nothing is replaced or
// skipped.
#include "kernels/cuda/device.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/reduce.cuh"

enum { MAX_BLOCK = 1024, BLOCK = 256 };

// For bf16 with two approximate instructions, absolute error about 2e-7.
template <typename T> __device__ __forceinline__ float tanh_for(float x) {
    return tanhf(x);
}
template <> __device__ __forceinline__ float tanh_for<bf16>(float x) {
    return 1.0f - 2.0f * rcp_approx(1.0f + exp2_approx(2.88539008f * x));
}

// The capped logit is cap * tanh(x / cap), its derivative 1 - tanh^2. Without a cap: x and 1.
template <typename T> struct Cap {
    float cap;
    __device__ float value(float x) const { return cap > 0.0f ? cap * tanh_for<T>(x / cap) : x; }
    __device__ float slope(float z) const { return cap > 0.0f ? 1.0f - z / cap * (z / cap) : 1.0f; }
};

// sum of exp(z - top) over some z; top -inf: no z yet.
struct Softmax {
    float top, sum;
};
__device__ __forceinline__ float exp_from(float z, float top) {
    return top == -INFINITY ? 0.0f : expf(z - top);
}
template <int W> __device__ __forceinline__ void softmax_add(Softmax &s, const float *z) {
    float top = s.top;
#pragma unroll
    for (int j = 0; j < W; j++)
        top = fmaxf(top, z[j]);
    float sum = s.sum * exp_from(s.top, top);
#pragma unroll
    for (int j = 0; j < W; j++)
        sum += top == -INFINITY ? (z[j] == top ? 0.0f : z[j]) : expf(z[j] - top);
    s = {top, sum};
}

template <typename T> struct Loss {
    T *logits;
    float *losses;
    const int *targets;
    int V, Vp;
    Cap<T> cap;
    float dscale;
    bool backward;
};

template <typename T, int W> __global__ void classifier_kernel(Loss<T> a) {
    SHARED(float, scratch);
    T *x = a.logits + (size_t)blockIdx.x * a.Vp;
    int target = a.targets[blockIdx.x], first = threadIdx.x * W, step = blockDim.x * W;
    float z[W];
    if (target < 0) {  // the whole block takes this way
#pragma unroll
        for (int j = 0; j < W; j++)
            z[j] = 0.0f;
        for (int i = first; a.backward && i < a.Vp; i += step)
            store_vec<W>(x + i, z);
        if (threadIdx.x == 0) a.losses[blockIdx.x] = 0.0f;
        return;
    }
    // Whole pieces of W columns, then what is left of V.
    Softmax s = {-INFINITY, 0.0f};
    int whole = a.V / W * W;
    for (int i = first; i < whole; i += step) {
        load_vec<W>(z, x + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            z[j] = a.cap.value(z[j]);
        softmax_add<W>(s, z);
    }
    for (int i = whole + threadIdx.x; i < a.V; i += blockDim.x) {
        float last = a.cap.value(to_float(x[i]));
        softmax_add<1>(s, &last);
    }
    float top = block_max(s.top, scratch);
    float sum = block_sum(s.top == -INFINITY ? s.sum : s.sum * expf(s.top - top), scratch);
    float hit = a.cap.value(to_float(x[target]));
    if (threadIdx.x == 0) a.losses[blockIdx.x] = logf(sum) + (top - hit);
    if (!a.backward) return;
    __syncthreads();  // x[target] has been read by all
    float factor = a.dscale / sum;
    for (int i = first; i < a.Vp; i += step) {
        load_vec<W>(z, x + i);
#pragma unroll
        for (int j = 0; j < W; j++) {
            float c = a.cap.value(z[j]);
            float p = factor * expf(c - top) - (i + j == target ? a.dscale : 0.0f);
            z[j] = i + j < a.V ? p * a.cap.slope(c) : 0.0f;
        }
        store_vec<W>(x + i, z);
    }
}

template <typename T, int W> __global__ void softcap_kernel(T *logits, size_t n, Cap<T> cap) {
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    if (i >= n) return;
    float z[W];
    load_vec<W>(z, logits + i);
#pragma unroll
    for (int j = 0; j < W; j++)
        z[j] = cap.value(z[j]);
    store_vec<W>(logits + i, z);
}

template <typename T>
static void classifier_cuda(floatX *logits, float *losses, const int *targets, size_t n, int V,
                            int Vp, float softcap, float dscale, bool backward) {
    Loss<T> a = {(T *)logits, losses, targets, V, Vp, {softcap}, dscale, backward};
    bool wide = Vp % 8 == 0 && fits<8>(a.logits);
    size_t threads = round_up(ceil_div((size_t)Vp, wide ? 8 : 1), WARP);
    dim3 block((unsigned)min_size(threads, MAX_BLOCK));
    if (wide) {
        LAUNCH((classifier_kernel<T, 8>), n, block, WARP * sizeof(float), cuda_stream())(a);
    } else {
        LAUNCH((classifier_kernel<T, 1>), n, block, WARP * sizeof(float), cuda_stream())(a);
    }
}

template <typename T> static void softcap_cuda(floatX *logits, size_t n, float softcap) {
    if (!(softcap > 0.0f)) return;
    T *x = (T *)logits;
    if (n % 8 == 0 && fits<8>(x)) {
        LAUNCH((softcap_kernel<T, 8>), ceil_div(n / 8, BLOCK), BLOCK, 0, cuda_stream())
        (x, n, Cap<T>{softcap});
    } else {
        LAUNCH((softcap_kernel<T, 1>), ceil_div(n, BLOCK), BLOCK, 0, cuda_stream())
        (x, n, Cap<T>{softcap});
    }
}

template <typename T> void classifier_ops(Ops *o) {
    o->classifier = classifier_cuda<T>;
    o->softcap = softcap_cuda<T>;
}
template void classifier_ops<float>(Ops *);
template void classifier_ops<bf16>(Ops *);
