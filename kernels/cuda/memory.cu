// memory.cu - allocation, copies and conversions between host and device.
#include "kernels/cuda/convert.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/ptx.cuh"

#include <string.h>

static void *alloc_cuda(size_t bytes) {
    void *p = nullptr;
    if (bytes == 0) bytes = 1;
    if (cudaMalloc(&p, bytes) != cudaSuccess) {
        size_t available = 0, total = 0;
        cudaMemGetInfo(&available, &total);
        die("out of GPU memory: %.2f GB wanted, %.2f GB of %.2f GB free", (double)bytes * 1e-9,
            (double)available * 1e-9, (double)total * 1e-9);
    }
    CUDA_CHECK(cudaMemsetAsync(p, 0, bytes, cuda_stream()));
    return p;
}

static void free_cuda(void *p) {
    cuda_wait();
    CUDA_CHECK(cudaFree(p));
}

static void zero_cuda(void *p, size_t bytes) {
    CUDA_CHECK(cudaMemsetAsync(p, 0, bytes, cuda_stream()));
}

static void copy_cuda(void *dst, const void *src, size_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, cuda_stream()));
}

// The caller may change src at once: it goes through pinned memory.
static void upload_bytes_cuda(void *dst, const void *src, size_t bytes) {
    for (size_t i = 0; i < bytes; i += STAGING_BYTES) {
        size_t n = min_size(bytes - i, STAGING_BYTES);
        char *host = cuda_staging();
        memcpy(host, static_cast<const char *>(src) + i, n);
        CUDA_CHECK(cudaMemcpyAsync(static_cast<char *>(dst) + i, host, n, cudaMemcpyHostToDevice,
                                   cuda_stream()));
        cuda_staging_sent();
    }
}

static void download_bytes_cuda(void *dst, const void *src, size_t bytes) {
    CUDA_CHECK(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, cuda_stream()));
    cuda_wait();
}

template <typename To, typename From, int W>
__global__ void convert_kernel(To *out, const From *inp, size_t n) {
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * W;
    if (i >= n) return;
    float x[W];
    load_vec<W>(x, inp + i);
    store_vec<W>(out + i, x);
}

template <typename To, typename From> void convert(To *out, const From *inp, size_t n) {
    if (n % 8 == 0 && fits<8>(out) && fits<8>(inp)) {
        LAUNCH((convert_kernel<To, From, 8>), ceil_div(n / 8, 256), 256, 0, cuda_stream())
        (out, inp, n);
    } else {
        LAUNCH((convert_kernel<To, From, 1>), ceil_div(n, 256), 256, 0, cuda_stream())(out, inp, n);
    }
}
template void convert<bf16, float>(bf16 *, const float *, size_t);
template void convert<float, bf16>(float *, const bf16 *, size_t);

enum { CHUNK = 1 << 22 };  // elements converted at a time, through fp32 scratch

template <typename T> static void upload_cuda(floatX *dst, const float *src, size_t n) {
    for (size_t i = 0; i < n; i += CHUNK) {
        size_t m = min_size(n - i, CHUNK);
        float *part = static_cast<float *>(cuda_scratch(m * sizeof(float)));
        upload_bytes_cuda(part, src + i, m * sizeof(float));
        convert(reinterpret_cast<T *>(dst) + i, part, m);
    }
}
template <> void upload_cuda<float>(floatX *dst, const float *src, size_t n) {
    upload_bytes_cuda(dst, src, n * sizeof(float));
}

template <typename T> static void download_cuda(float *dst, const floatX *src, size_t n) {
    for (size_t i = 0; i < n; i += CHUNK) {
        size_t m = min_size(n - i, CHUNK);
        float *part = static_cast<float *>(cuda_scratch(m * sizeof(float)));
        convert(part, reinterpret_cast<const T *>(src) + i, m);
        download_bytes_cuda(dst + i, part, m * sizeof(float));
    }
}
template <> void download_cuda<float>(float *dst, const floatX *src, size_t n) {
    download_bytes_cuda(dst, src, n * sizeof(float));
}

template <typename T> void memory_ops(Ops *o) {
    o->alloc = alloc_cuda;
    o->free = free_cuda;
    o->zero = zero_cuda;
    o->copy = copy_cuda;
    o->upload_bytes = upload_bytes_cuda;
    o->download_bytes = download_bytes_cuda;
    o->upload = upload_cuda<T>;
    o->download = download_cuda<T>;
    o->sync = cuda_wait;
}
template void memory_ops<float>(Ops *);
template void memory_ops<bf16>(Ops *);
