// device.h - the GPU of this process: one device, one compute stream, scratch, and pinned memory.
// All ops enqueue on cuda_stream(), so scratch of one op is free for the next.
#pragma once

#include <stdint.h>

#include "kernels/cuda/gpu.h"
#include "kernels/ops.h"

// Pinned host memory through which all uploads go: pieces in turn, each with the event of its last
// copy. The caller's memory is its own again at once, and the host waits only when it is a whole
// ring ahead of the device.
enum { STAGING_PIECES = 8, STAGING_BYTES = 1 << 20 };
typedef struct Staging {
    char *host;
    cudaEvent_t copied[STAGING_PIECES];
    int next;
} Staging;

typedef struct CudaDevice {
    bool is_open;
    int index;
    char name[256], isa[16];  // "sm_90"
    int n_sm;                 // multiprocessors
    size_t shared_bytes;      // of shared memory that one block can have
    size_t shared_limit;      // that it may ask for: see cuda_limit_shared
    cudaStream_t stream;
    void *scratch[2];
    size_t scratch_bytes[2];
    struct Blas *blas;  // gemm.cu
    Staging staging;
    size_t waits;  // see cuda_waits
} CudaDevice;

struct Blas *blas_open();
void blas_close(struct Blas *b);

// Dies when cuda_open has not been called.
const CudaDevice *cuda_device();
static inline cudaStream_t cuda_stream() {
    return cuda_device()->stream;
}

// Waits until the stream has run dry.
void cuda_wait();
// The next piece of pinned memory, when its last copy is done; cuda_staging_sent follows the copy
// from it.
char *cuda_staging();
void cuda_staging_sent();

// At least `bytes` of device memory, 256-byte aligned, contents undefined; valid until the next
// call.
void *cuda_scratch(size_t bytes);
// Another such buffer, for an op that calls what uses the first.
void *cuda_scratch_outer(size_t bytes);

// Each tensor-core kernel of attention has sizes that need no more shared memory than this, which
// every device of compute capability 8.0 and newer has; with less the plain kernels run.
static const size_t MMA_SHARED_BYTES = 99 << 10;
static inline bool has_mma_shared() {
    return cuda_device()->shared_limit >= MMA_SHARED_BYTES;
}

// The larger of two kernels where it fits; the other is not even compiled when it always does. A
// kernel has SHARED_BYTES and launch(arguments).
template <typename Large, typename Small, typename... A> static void launch_fitting(const A &...a) {
    static_assert(Small::SHARED_BYTES <= MMA_SHARED_BYTES, "fits small devices");
    if constexpr (Large::SHARED_BYTES <= MMA_SHARED_BYTES)
        Large::launch(a...);
    else if (Large::SHARED_BYTES <= cuda_device()->shared_limit)
        Large::launch(a...);
    else
        Small::launch(a...);
}

// Blocks for work that strides over the grid: enough to fill the device `per_sm` times, no more
// than there are pieces.
static inline size_t grid_fill(size_t pieces, int per_sm) {
    size_t full = (size_t)cuda_device()->n_sm * (size_t)per_sm;
    return pieces < full ? pieces : full;
}

// All pointers and row strides (in elements of T) allow accesses of W elements (of at most 16
// bytes). Null pointers do.
template <int W, typename T> static inline bool fits(const T *p) {
    size_t bytes = W * sizeof(T) < 16 ? W * sizeof(T) : 16;
    return (uintptr_t)p % bytes == 0;
}
