// test_emu_stream.cu - mistakes of the host: pinned memory that changes while a copy from it is in
// flight, results that are read before they are there.
#include "test/emu/faults.h"

namespace {
struct Pinned {
    float *p;
    explicit Pinned(size_t n) {
        CUDA_CHECK(
            cudaHostAlloc(reinterpret_cast<void **>(&p), n * sizeof(float), cudaHostAllocDefault));
    }
    ~Pinned() { CUDA_CHECK(cudaFreeHost(p)); }
};
struct Event {
    cudaEvent_t e;
    Event() { CUDA_CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming)); }
    ~Event() { CUDA_CHECK(cudaEventDestroy(e)); }
};
const size_t BYTES = 64 * sizeof(float);
}  // namespace

__global__ void twice_kernel(float *x) {
    x[threadIdx.x] *= 2.0f;
}

static void changing_pinned_memory_too_early_is_caught(TestCtx *t) {
    for (int wait = 0; wait < 2; wait++) {
        Device x(64);
        Pinned host(64);
        Event copied;
        float back[64];
        for (int i = 0; i < 64; i++)
            host.p[i] = (float)i;
        emu_catch(true);
        CUDA_CHECK(cudaMemcpyAsync(x.p, host.p, BYTES, cudaMemcpyHostToDevice, nullptr));
        CUDA_CHECK(cudaEventRecord(copied.e, nullptr));
        if (wait) CUDA_CHECK(cudaEventSynchronize(copied.e));
        host.p[63] = -1.0f;
        CUDA_CHECK(cudaMemcpyAsync(back, x.p, BYTES, cudaMemcpyDeviceToHost, nullptr));
        if (wait) {
            CHECK_MSG(t, !*emu_fault(), "false alarm: %s", emu_fault());
            CHECK(t, back[63] == 63.0f);
        } else {
            CHECK_MSG(t, strstr(emu_fault(), "the host changed the pinned memory"), "'%s'",
                      emu_fault());
        }
        emu_catch(false);
    }
}

// Memory that is not pinned is the caller's again when the call returns.
static void pageable_memory_may_change_at_once(TestCtx *t) {
    Device x(64);
    float host[64] = {1.0f}, back[64];
    CUDA_CHECK(cudaMemcpyAsync(x.p, host, BYTES, cudaMemcpyHostToDevice, nullptr));
    host[0] = 5.0f;
    CUDA_CHECK(cudaMemcpyAsync(back, x.p, BYTES, cudaMemcpyDeviceToHost, nullptr));
    CHECK(t, back[0] == 1.0f);
}

// Kernels and copies run in order, but only when somebody waits: an event covers what came before
// it.
static void results_are_there_after_a_wait(TestCtx *t) {
    Device x(64);
    Pinned out(64);
    Event first;
    float ones[64];
    for (float &one : ones)
        one = 1.0f;
    CUDA_CHECK(cudaMemcpyAsync(x.p, ones, BYTES, cudaMemcpyHostToDevice, nullptr));
    LAUNCH(twice_kernel, 1, 64, 0, nullptr)(x.p);
    CUDA_CHECK(cudaMemcpyAsync(out.p, x.p, BYTES, cudaMemcpyDeviceToHost, nullptr));
    CUDA_CHECK(cudaEventRecord(first.e, nullptr));
    LAUNCH(twice_kernel, 1, 64, 0, nullptr)(x.p);
    CHECK(t, out.p[5] != 2.0f);
    CUDA_CHECK(cudaEventSynchronize(first.e));
    CHECK(t, out.p[5] == 2.0f);
    CUDA_CHECK(cudaMemcpyAsync(out.p, x.p, BYTES, cudaMemcpyDeviceToHost, nullptr));
    CHECK(t, out.p[5] != 4.0f);
    CUDA_CHECK(cudaStreamSynchronize(nullptr));
    CHECK(t, out.p[5] == 4.0f);
}

TEST_MAIN({"changing_pinned_memory_too_early_is_caught",
           changing_pinned_memory_too_early_is_caught},
          {"pageable_memory_may_change_at_once", pageable_memory_may_change_at_once},
          {"results_are_there_after_a_wait", results_are_there_after_a_wait})
