// gpu.h - the one header that knows nvcc from the emulator: launches, shared memory, error checks,
// and the bf16 type. Kernels are written in CUDA's own words otherwise.
//
// Rules for kernels, which the emulator enforces: launch through LAUNCH; shared memory through
// SHARED, never static; no return before a barrier or warp operation; warp operations through
// reduce.cuh, PTX and vector accesses through ptx.cuh; no float atomics unless the caller allows
// any order; 64-bit offsets.
#pragma once

#include "gpt/tensor.h"

#ifdef GPU_EMU
    #include "test/emu/cuda_emu.h"
#else
    #include <cuda_runtime.h>
#endif

// A brain float: the upper half of an fp32. Arithmetic is done in fp32 (see to_float, from_float).
struct bf16 {
    unsigned short bits;
};

#define WARP_ALL 0xFFFFFFFFu
enum { WARP = 32, SHARED_DEFAULT_BYTES = 48 * 1024 };

static inline void cuda_check(cudaError_t e, const char *what, const char *file, int line) {
    if (e != cudaSuccess) die("CUDA: %s at %s:%d: %s", what, file, line, cudaGetErrorString(e));
}
#define CUDA_CHECK(call) cuda_check((call), #call, __FILE__, __LINE__)

// Blocks of a launch. From a count: x alone, checked.
struct Grid {
    dim3 d;
    Grid(dim3 d_) : d(d_) {}
    Grid(size_t n) : d((unsigned)n) {
        if (n == 0 || n > 0x7FFFFFFFu) die("CUDA: a grid of %zu blocks", n);
    }
};

template <typename... P> struct Launcher {
    void (*kernel)(P...);
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
    const char *name, *file;
    int line;

    void operator()(P... args) const {
        if (shared_bytes > SHARED_DEFAULT_BYTES) {
            cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            (int)shared_bytes),
                       name, file, line);
        }
#ifdef GPU_EMU
        EmuArgs<P...> bound = {kernel, std::tuple<P...>(args...)};
        emu_launch({(const void *)kernel, name, file, line, grid, block, shared_bytes,
                    EmuArgs<P...>::call, &bound, sizeof bound});
#else
        kernel<<<grid, block, shared_bytes, stream>>>(args...);
#endif
        cuda_check(cudaGetLastError(), name, file, line);
    }
};

template <typename... P>
Launcher<P...> make_launcher(void (*kernel)(P...), Grid grid, dim3 block, size_t shared_bytes,
                             cudaStream_t stream, const char *name, const char *file, int line) {
    return {kernel, grid.d, block, shared_bytes, stream, name, file, line};
}

// LAUNCH(kernel, grid, block, shared_bytes, stream)(arguments...); a kernel template with two or
// more parameters stands in parentheses, null pointers are written nullptr.
#define LAUNCH(kernel, grid, block, shared_bytes, stream)                                          \
    make_launcher(kernel, grid, block, shared_bytes, stream, #kernel, __FILE__, __LINE__)

// The block's one dynamic buffer as an array, at the start or behind other arrays.
#ifdef GPU_EMU
    #define SHARED(type, name) type *name = static_cast<type *>(emu_shared())
#else
extern __shared__ __align__(128) unsigned char shared_buffer[];
    #define SHARED(type, name) type *name = reinterpret_cast<type *>(shared_buffer)
#endif

// Blocks get no more shared memory than this from now on; the emulator catches those who ask for
// more.
static inline void limit_shared(size_t bytes) {
#ifdef GPU_EMU
    emu_limit_shared(bytes);
#else
    (void)bytes;
#endif
}

// Says that the contents of device memory are undefined from now on, and that an allocation which
// begins there is used no further than this. The emulator then catches who reads or goes beyond.
static inline void make_undefined(void *p, size_t bytes) {
#ifdef GPU_EMU
    emu_undefined(p, bytes);
#else
    (void)p, (void)bytes;
#endif
}
