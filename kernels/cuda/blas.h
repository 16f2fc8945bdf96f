// blas.h - cuBLASLt, or what stands for it in the emulator.
#pragma once

#include "kernels/cuda/device.h"

#ifdef GPU_EMU
    #include "test/emu/emu_cublaslt.h"
#else
    #include <cublasLt.h>
#endif
