// device.cu - see device.h and ops_cuda.h. Holds the only mutable state of kernels/cuda.
#include "kernels/cuda/device.h"

#include "kernels/cuda/ops_cuda.h"

#include <stdio.h>

static CudaDevice device;

static void open_staging(Staging *s) {
    if (cudaHostAlloc(reinterpret_cast<void **>(&s->host), STAGING_PIECES * (size_t)STAGING_BYTES,
                      cudaHostAllocDefault) != cudaSuccess) {
        die("out of pinned memory: no room for %d pieces of %d bytes", STAGING_PIECES,
            STAGING_BYTES);
    }
    for (cudaEvent_t &e : s->copied) {
        CUDA_CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
        CUDA_CHECK(cudaEventRecord(e, device.stream));
    }
}

static void close_staging(Staging *s) {
    for (cudaEvent_t e : s->copied)
        CUDA_CHECK(cudaEventDestroy(e));
    CUDA_CHECK(cudaFreeHost(s->host));
}

static bool open_device(int index, Error *err) {
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0) {
        return error_set(err, "no usable GPU: %s; install an NVIDIA driver or use --device cpu",
                         e != cudaSuccess ? cudaGetErrorString(e) : "CUDA finds no device");
    }
    if (index < 0 || index >= n) {
        return error_set(err, "GPU %d does not exist: found %d, numbered from 0", index, n);
    }
    cudaDeviceProp p;
    e = cudaGetDeviceProperties(&p, index);
    if (e == cudaSuccess) e = cudaSetDevice(index);
    if (e != cudaSuccess) return error_set(err, "GPU %d: %s", index, cudaGetErrorString(e));
    if (p.major < 8) {
        return error_set(err, "GPU %d (%s) has compute capability %d.%d: expected 8.0 or newer",
                         index, p.name, p.major, p.minor);
    }
    snprintf(device.name, sizeof device.name, "%s", p.name);
    snprintf(device.isa, sizeof device.isa, "sm_%d%d", p.major, p.minor);
    device.index = index;
    device.n_sm = p.multiProcessorCount;
    device.shared_bytes = device.shared_limit = p.sharedMemPerBlockOptin;
    e = cudaStreamCreateWithFlags(&device.stream, cudaStreamNonBlocking);
    if (e != cudaSuccess) return error_set(err, "GPU %d: %s", index, cudaGetErrorString(e));
    device.blas = blas_open();
    open_staging(&device.staging);
    device.is_open = true;
    return true;
}

bool cuda_open(int index, Error *err) {
    if (!device.is_open) return open_device(index, err);
    if (device.index == index) return true;
    return error_set(err, "GPU %d: this process uses GPU %d already", index, device.index);
}

size_t cuda_limit_shared(size_t bytes) {
    size_t all = cuda_device()->shared_bytes;
    device.shared_limit = bytes && bytes < all ? bytes : all;
    limit_shared(device.shared_limit);
    return device.shared_limit;
}

void cuda_close(void) {
    if (!device.is_open) return;
    CUDA_CHECK(cudaStreamSynchronize(device.stream));
    blas_close(device.blas);
    close_staging(&device.staging);
    CUDA_CHECK(cudaFree(device.scratch[0]));
    CUDA_CHECK(cudaFree(device.scratch[1]));
    CUDA_CHECK(cudaStreamDestroy(device.stream));
    device = CudaDevice();
}

const CudaDevice *cuda_device() {
    if (!device.is_open) die("CUDA: an op was called before cuda_open");
    return &device;
}

void cuda_wait() {
    CUDA_CHECK(cudaStreamSynchronize(cuda_stream()));
    device.waits++;
}

size_t cuda_waits(void) {
    return device.waits;
}

char *cuda_staging() {
    const Staging *s = &cuda_device()->staging;
    CUDA_CHECK(cudaEventSynchronize(s->copied[s->next]));
    return s->host + (size_t)s->next * STAGING_BYTES;
}

void cuda_staging_sent() {
    Staging *s = &device.staging;
    CUDA_CHECK(cudaEventRecord(s->copied[s->next], cuda_stream()));
    s->next = (s->next + 1) % STAGING_PIECES;
}

static void *scratch(int which, size_t bytes) {
    size_t *held = &device.scratch_bytes[which];
    if (bytes > *held) {
        cuda_wait();
        CUDA_CHECK(cudaFree(device.scratch[which]));
        *held = round_up(bytes, (size_t)1 << 20);
        if (cudaMalloc(&device.scratch[which], *held) != cudaSuccess) {
            die("out of GPU memory: no room for %zu bytes of scratch", *held);
        }
    }
    make_undefined(device.scratch[which], bytes);
    return device.scratch[which];
}

void *cuda_scratch(size_t bytes) {
    return scratch(0, bytes);
}
void *cuda_scratch_outer(size_t bytes) {
    return scratch(1, bytes);
}
