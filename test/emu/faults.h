// faults.h - for the tests of the emulator: a kernel with a fault must end in the right sentence,
// in every thread order, and the mended kernel in none.
#pragma once

#include "kernels/cuda/reduce.cuh"

#include <stdlib.h>
#include <string.h>

extern "C" {
#include "test/test.h"
}

static const char *const emu_orders[] = {"forward", "reverse", "shuffle:1", "shuffle:2"};

struct Device {
    float *p;
    explicit Device(size_t n) {
        CUDA_CHECK(cudaMalloc(reinterpret_cast<void **>(&p), n * sizeof(float)));
    }
    ~Device() { CUDA_CHECK(cudaFree(p)); }
    void zero(size_t n) { CUDA_CHECK(cudaMemsetAsync(p, 0, n * sizeof(float), nullptr)); }
};

// `launch(fault)` is fine for 0 and ends in a sentence with `words` for 1, whatever the order.
template <typename F> static void expect_fault(TestCtx *t, const char *words, F launch) {
    for (const char *order : emu_orders) {
        setenv("GPU_EMU_ORDER", order, 1);
        for (int fault = 0; fault < 2; fault++) {
            emu_catch(true);
            launch(fault);
            if (!fault)
                CHECK_MSG(t, !*emu_fault(), "%s: false alarm: %s", order, emu_fault());
            else
                CHECK_MSG(t, strstr(emu_fault(), words), "%s: '%s'", order, emu_fault());
            if (fault) CHECK(t, strstr(emu_fault(), "test_emu_"));
        }
    }
    emu_catch(false);
    unsetenv("GPU_EMU_ORDER");
}
