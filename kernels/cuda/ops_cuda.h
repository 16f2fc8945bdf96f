// ops_cuda.h - the op table of NVIDIA GPUs of compute capability 8.0 and newer (or of the emulator
// that tests run on). Plain C: programs and tests need nothing else of CUDA.
#pragma once

#include "kernels/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

// Takes device `index` for this process; false with a sentence when there is no driver, no such
// device, or one that is too old. Opening the same device twice does nothing.
bool cuda_open(int index, Error *err);
void cuda_close(void);

// How often the host has waited for the device to finish everything, since cuda_open. Products,
// kernels and uploads don't; downloads do, and whatever gives memory back.
size_t cuda_waits(void);

// Choices for the open device; cuda_open sets all to 0.
typedef struct CudaSettings {
    // Gradients of attention's queries (bf16, tensor cores) in one pass over the scores instead of
    // two, summed by float atomics: less work, but the last bits differ from run to run.
    bool fast_gradients;
    size_t shared_limit;  // bytes of shared memory that a block may have, fewer than the device's;
                          // 0: all. For tests of what small devices run.
} CudaSettings;
void cuda_configure(const CudaSettings *s);

// The table whose floatX is TYPE_F32 or TYPE_BF16. cuda_open comes first.
const Ops *ops_cuda(ElemType act);

#ifdef __cplusplus
}
#endif
