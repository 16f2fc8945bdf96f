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

// The open device as if a block of it had so many bytes of shared memory, at most what it has; 0:
// all. Returns what it now has. For tests of what small devices run.
size_t cuda_limit_shared(size_t bytes);

// The table whose floatX is TYPE_F32 or TYPE_BF16. cuda_open comes first.
const Ops *ops_cuda(ElemType act);

#ifdef __cplusplus
}
#endif
