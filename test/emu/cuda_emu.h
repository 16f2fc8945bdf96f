// cuda_emu.h - the part of CUDA that our kernels use, executed on the CPU and hostile to mistakes.
// Only kernels/cuda/gpu.h and ptx.cuh include this, when built with -DGPU_EMU. A block is a set of
// fibers, a barrier or warp operation is a switch, blocks run one after another. Device and shared
// memory start as NaN; faults end the launch with one sentence (see emu_catch). Launches and copies
// wait in the stream until the host waits for them. Where a .cu file is
// compiled with -fsanitize=thread every access is checked as well (emu_check.cpp).
// GPU_EMU_ORDER=forward|reverse|shuffle[:seed] is read when a launch is enqueued.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <tuple>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct uint3 {
    unsigned x, y, z;
};

// Constant while one thread runs, so a compiler may keep them across a switch.
__attribute__((const)) uint3 emu_thread_idx();
__attribute__((const)) uint3 emu_block_idx();
__attribute__((const)) dim3 emu_block_dim();
__attribute__((const)) dim3 emu_grid_dim();
#define threadIdx emu_thread_idx()
#define blockIdx  emu_block_idx()
#define blockDim  emu_block_dim()
#define gridDim   emu_grid_dim()

template <typename A, typename B> constexpr std::common_type_t<A, B> min(A a, B b) {
    return b < a ? b : a;
}
template <typename A, typename B> constexpr std::common_type_t<A, B> max(A a, B b) {
    return a < b ? b : a;
}

inline float rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}
inline unsigned __float_as_uint(float x) {
    unsigned u;
    memcpy(&u, &x, 4);
    return u;
}
inline float __uint_as_float(unsigned u) {
    float x;
    memcpy(&x, &u, 4);
    return x;
}
inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}

// --- Launching.
struct EmuLaunch {
    const void *kernel;
    const char *name, *file;
    int line;
    dim3 grid, block;
    size_t shared_bytes;
    void (*call)(const void *args);
    const void *args;
    size_t args_bytes;
};
void emu_launch(const EmuLaunch &l);
void *emu_shared();

template <typename... P> struct EmuArgs {
    void (*kernel)(P...);
    std::tuple<P...> values;
    static void call(const void *self) {
        const EmuArgs *a = static_cast<const EmuArgs *>(self);
        std::apply(a->kernel, a->values);
    }
};

// --- Barriers and warp operations. Threads meet at the same line or the launch fails.
#define EMU_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()
void emu_block_sync(const char *file, int line);
void emu_warp_sync(unsigned mask, const char *file, int line);
// Gives `bytes` (<= 64) to the warp; returns what the 32 lanes gave, EMU_SLOT bytes apart, valid
// until this thread's next warp operation.
enum { EMU_SLOT = 64 };
const char *emu_exchange(const void *mine, size_t bytes, unsigned mask, const char *op,
                         const char *file, int line);
int emu_lane();

inline void __syncthreads(EMU_HERE) {
    emu_block_sync(file, line);
}
int emu_block_or(bool p, const char *file, int line);
inline int __syncthreads_or(int p, EMU_HERE) {
    return emu_block_or(p != 0, file, line);
}
inline void __syncwarp(unsigned mask = ~0u, EMU_HERE) {
    emu_warp_sync(mask, file, line);
}

template <typename T>
__attribute__((no_sanitize("thread"))) T emu_shuffle(unsigned mask, T value, int from,
                                                     const char *op, const char *file, int line) {
    T out = value;
    const char *all = emu_exchange(&value, sizeof value, mask, op, file, line);
    if (from >= 0 && from < 32) memcpy(&out, all + from * EMU_SLOT, sizeof out);
    return out;
}
template <typename T> T __shfl_sync(unsigned mask, T v, int from, int = 32, EMU_HERE) {
    return emu_shuffle(mask, v, from & 31, "shfl", file, line);
}
template <typename T> T __shfl_xor_sync(unsigned mask, T v, int bits, int = 32, EMU_HERE) {
    return emu_shuffle(mask, v, emu_lane() ^ bits, "shfl_xor", file, line);
}
template <typename T> T __shfl_down_sync(unsigned mask, T v, unsigned n, int = 32, EMU_HERE) {
    return emu_shuffle(mask, v, emu_lane() + (int)n, "shfl_down", file, line);
}
template <typename T> T __shfl_up_sync(unsigned mask, T v, unsigned n, int = 32, EMU_HERE) {
    return emu_shuffle(mask, v, emu_lane() - (int)n, "shfl_up", file, line);
}
unsigned emu_ballot(unsigned mask, bool p, const char *file, int line);
inline unsigned __ballot_sync(unsigned mask, int p, EMU_HERE) {
    return emu_ballot(mask, p != 0, file, line);
}

int emu_atomic_add(int *p, int x, const char *file, int line);
inline int atomicAdd(int *p, int x, EMU_HERE) {
    return emu_atomic_add(p, x, file, line);
}

// --- Bodies of ptx.cuh. Alignment is always checked, the rest when the file is instrumented.
void emu_vector_read(void *registers, const void *memory, size_t bytes, const char *file, int line);
void emu_vector_write(void *memory, const void *registers, size_t bytes, const char *file,
                      int line);
void emu_mma_m16n8k16(float *d, const unsigned *a, const unsigned *b, const char *file, int line);
void emu_ldmatrix_x4(unsigned *r, const void *row, bool trans, const char *file, int line);
void emu_cp_async(void *dst, const void *src, int src_bytes, const char *file, int line);
void emu_red_add(float *p, const float *x, int n, const char *file, int line);  // n sums
void emu_cp_async_commit();
void emu_cp_async_wait(unsigned newest);  // lands all groups but the newest ones

// --- The runtime calls that the program makes. Work is done when the host waits for it.
typedef enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorNoDevice = 100,
    cudaErrorNotReady = 600
} cudaError_t;
typedef struct EmuStream *cudaStream_t;
typedef struct EmuEvent *cudaEvent_t;
enum cudaMemcpyKind {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost = 2,
    cudaMemcpyDeviceToDevice = 3
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum { cudaStreamNonBlocking = 1, cudaHostAllocDefault = 0, cudaEventDisableTiming = 2 };
struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlockOptin;
    int major, minor, multiProcessorCount;
};
cudaError_t cudaGetDeviceCount(int *n);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
cudaError_t cudaMalloc(void **p, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaMemGetInfo(size_t *available, size_t *total);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t);
cudaError_t cudaGetLastError();
const char *cudaGetErrorString(cudaError_t e);
cudaError_t emu_func_set_shared(const void *kernel, int bytes);
template <typename F> cudaError_t cudaFuncSetAttribute(F *kernel, cudaFuncAttribute, int bytes) {
    return emu_func_set_shared(reinterpret_cast<const void *>(kernel), bytes);
}
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaEventCreate(cudaEvent_t *e);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaEventDestroy(cudaEvent_t e);

// What these bytes of device memory hold is no longer to be read; where p is the start of an
// allocation, its other bytes are no longer to be used.
void emu_undefined(void *p, size_t bytes);
// From now on no block gets more shared memory than this.
void emu_limit_shared(size_t bytes);

// --- For tests of the emulator: with `on` a fault no longer ends the process, its sentence waits
// in emu_fault() ("" when there was none) until the next emu_catch.
void emu_catch(bool on);
const char *emu_fault();
