// test_emu_memory.cu - faults of memory that a GPU would pass over in silence: bounds, alignment,
// reads before writes, races between blocks, the host's memory.
#include "test/emu/faults.h"

// --- Memory.
__global__ void overrun_kernel(float *out, int index) {
    SHARED(float, s);
    s[threadIdx.x] = 1.0f;
    if (threadIdx.x == 0) s[index < 64 ? index : 64] = 2.0f;
    if (threadIdx.x == 1) out[index < 64 ? 0 : index - 64] = s[1];
}
static void writing_behind_shared_memory_is_caught(TestCtx *t) {
    Device out(64);
    expect_fault(t, "writes 4 bytes at byte 256 of shared memory (256 bytes), out of bounds",
                 [&](int f) {
                     LAUNCH(overrun_kernel, 1, 64, 256, nullptr)
                     (out.p, f ? 64 : 0);
                 });
}
__global__ void store_kernel(float *out, int at) {
    if (threadIdx.x == 0) out[at] = 1.0f;
}
static void writing_outside_an_allocation_is_caught(TestCtx *t) {
    Device out(33);
    expect_fault(t, "byte 132 of a device allocation of 132 bytes, out of bounds", [&](int f) {
        LAUNCH(store_kernel, 1, 32, 0, nullptr)(out.p, f ? 33 : 32);
    });
    expect_fault(t, "byte -4 of a device allocation", [&](int f) {
        LAUNCH(store_kernel, 1, 32, 0, nullptr)(out.p, f ? -1 : 0);
    });
}
static void using_freed_memory_is_caught(TestCtx *t) {
    Device out(1);
    float *freed;
    {
        Device gone(1);
        freed = gone.p;
    }
    expect_fault(t, "freed device allocation", [&](int f) {
        LAUNCH(store_kernel, 1, 32, 0, nullptr)(f ? freed : out.p, 0);
    });
}
static void host_memory_is_not_for_kernels(TestCtx *t) {
    Device out(1);
    float *host = static_cast<float *>(malloc(sizeof(float)));
    expect_fault(t, "host memory touched by a kernel", [&](int f) {
        LAUNCH(store_kernel, 1, 32, 0, nullptr)(f ? host : out.p, 0);
    });
    free(host);
}
__attribute__((noinline)) static float first_of(const float *p) {
    return p[0];
}
static void device_memory_is_not_for_the_host(TestCtx *t) {
    Device out(1);
    out.zero(1);
    emu_catch(true);
    CHECK(t, first_of(out.p) == 0.0f);
    CHECK(t, strstr(emu_fault(), "device memory touched by the host"));
    emu_catch(false);
}

__global__ void copy_kernel(float *out, const float *inp) {
    out[threadIdx.x] = inp[threadIdx.x];
}
static void uninitialised_device_memory_is_caught(TestCtx *t) {
    Device out(64), inp(64), empty(64);
    inp.zero(64);
    expect_fault(t, "never written", [&](int f) {
        LAUNCH(copy_kernel, 1, 64, 0, nullptr)(out.p, f ? empty.p : inp.p);
    });
}
__global__ void unwritten_kernel(float *out, int fault) {
    SHARED(float, s);
    int i = threadIdx.x;
    if (!fault || i != 7) s[i] = 1.0f;
    __syncthreads();
    out[i] = s[i ^ 1];
}
static void uninitialised_shared_memory_is_caught(TestCtx *t) {
    Device out(64);
    expect_fault(t, "reads 4 bytes at byte 28 of shared memory (256 bytes), never written",
                 [&](int f) {
                     LAUNCH(unwritten_kernel, 1, 64, 256, nullptr)
                     (out.p, f);
                 });
}

__global__ void register_kernel(float *out, int n) {
    float x[4], sum = 0.0f;
    for (int i = 0; i < n; i++)
        x[i] = 1.0f;
    for (int i = 0; i < 4; i++)
        sum += x[i];
    out[threadIdx.x] = sum;
}
static void unwritten_registers_are_huge(TestCtx *t) {
#ifdef EMU_FILLS_REGISTERS
    Device out(32);
    for (int n = 3; n <= 4; n++) {
        float first;
        LAUNCH(register_kernel, 1, 32, 0, nullptr)(out.p, n);
        CUDA_CHECK(cudaMemcpyAsync(&first, out.p, 4, cudaMemcpyDeviceToHost, nullptr));
        CHECK_MSG(t, n == 4 ? first == 4.0f : !(fabsf(first) < 1e37f), "%d: %g", n, (double)first);
    }
#else
    test_skip(t, "this compiler cannot fill registers");
#endif
}

__global__ void count_up_kernel(float *out, int fault) {
    SHARED(float, s);
    int i = threadIdx.x;
    if (!fault) s[i] = 1.0f;
    s[i] += 1.0f;
    out[i] = s[i];
}
static void adding_to_what_was_never_written_is_caught(TestCtx *t) {
    Device out(64);
    expect_fault(t, "never written", [&](int f) {
        LAUNCH(count_up_kernel, 1, 64, 256, nullptr)(out.p, f);
    });
}

__global__ void blocks_kernel(float *out, int fault) {
    if (threadIdx.x == 0) out[fault ? 0 : blockIdx.x] = 1.0f;
}
static void blocks_of_a_launch_are_not_ordered(TestCtx *t) {
    Device out(4);
    expect_fault(t, "another block of this launch wrote", [&](int f) {
        LAUNCH(blocks_kernel, 4, 32, 0, nullptr)(out.p, f);
    });
}
// Each block writes its element and reads that of the next; with `after` in the other order.
__global__ void neighbours_kernel(float *x, int fault, int after) {
    int mine = (int)blockIdx.x, next = fault ? (mine + 1) % (int)gridDim.x : mine;
    if (threadIdx.x > 0) return;
    if (!after) x[mine] = 1.0f;
    float y = x[next];
    x[after ? mine : mine + 4] = y;
}
static void blocks_may_not_read_what_others_write(TestCtx *t) {
    Device x(8);
    x.zero(8);
    for (int after = 0; after < 2; after++) {
        expect_fault(t, "another block of this launch", [&](int f) {
            LAUNCH(neighbours_kernel, 4, 32, 0, nullptr)(x.p, f, after);
        });
    }
}

static void undefined_memory_is_not_to_be_read(TestCtx *t) {
    Device out(64), scratch(64);
    expect_fault(t, "never written", [&](int f) {
        scratch.zero(64);
        if (f) make_undefined(scratch.p, 256);
        LAUNCH(copy_kernel, 1, 64, 0, nullptr)(out.p, scratch.p);
    });
}
// Scratch of one op may be less than another left behind.
static void memory_beyond_what_is_used_is_caught(TestCtx *t) {
    Device out(64), scratch(64);
    expect_fault(t, "out of bounds", [&](int f) {
        make_undefined(scratch.p, f ? 252 : 256);
        CUDA_CHECK(cudaMemsetAsync(scratch.p, 0, f ? 252 : 256, nullptr));
        LAUNCH(copy_kernel, 1, 64, 0, nullptr)(out.p, scratch.p);
    });
}
// Scratch that grows is freed while an earlier address is still about.
static void memory_freed_behind_a_launch_is_caught(TestCtx *t) {
    Device out(64);
    expect_fault(t, "freed device allocation", [&](int f) {
        float *scratch;
        CUDA_CHECK(cudaMalloc(reinterpret_cast<void **>(&scratch), 256));
        CUDA_CHECK(cudaMemsetAsync(scratch, 0, 256, nullptr));
        if (f) CUDA_CHECK(cudaFree(scratch));
        LAUNCH(copy_kernel, 1, 64, 0, nullptr)(out.p, scratch);
        CUDA_CHECK(cudaStreamSynchronize(nullptr));
        if (!f) CUDA_CHECK(cudaFree(scratch));
    });
}
static void copies_of_freed_memory_are_caught(TestCtx *t) {
    float host[4] = {};
    Device live(4);
    float *freed;
    {
        Device gone(4);
        freed = gone.p;
    }
    emu_catch(true);
    CHECK(t, cudaMemcpyAsync(freed, host, 16, cudaMemcpyHostToDevice, nullptr) != cudaSuccess);
    CHECK(t, strstr(emu_fault(), "freed device allocation"));
    emu_catch(true);
    CHECK(t, cudaMemsetAsync(freed, 0, 16, nullptr) != cudaSuccess);
    CHECK(t, strstr(emu_fault(), "freed device allocation"));
    emu_catch(true);
    CHECK(t, cudaMemsetAsync(live.p, 0, 17, nullptr) != cudaSuccess);
    CHECK(t, strstr(emu_fault(), "not device memory"));
    emu_catch(true);
    CHECK(t, cudaFree(freed) != cudaSuccess);
    CHECK(t, strstr(emu_fault(), "cudaFree of"));
    emu_catch(false);
}
__global__ void count_kernel(int *n, int fault) {
    if (fault && threadIdx.x == 5)
        n[0] += 1;
    else
        atomicAdd(n, 1);
}
static void atomics_are_ordered_but_not_with_plain_accesses(TestCtx *t) {
    Device n(1);
    n.zero(1);
    expect_fault(t, "test_emu_", [&](int f) {
        LAUNCH(count_kernel, 3, 64, 0, nullptr)(reinterpret_cast<int *>(n.p), f);
    });
    int host = 0;
    n.zero(1);
    LAUNCH(count_kernel, 3, 64, 0, nullptr)(reinterpret_cast<int *>(n.p), 0);
    CUDA_CHECK(cudaMemcpyAsync(&host, n.p, 4, cudaMemcpyDeviceToHost, nullptr));
    CHECK(t, host == 192);
}

template <typename T, int W> __global__ void vector_kernel(T *out, const T *inp) {
    float x[W];
    load_vec<W>(x, inp + W * threadIdx.x);
    store_vec<W>(out + W * threadIdx.x, x);
}
static void misaligned_vectors_are_caught(TestCtx *t) {
    Device out(32 * 4 + 4), inp(32 * 4 + 4);
    inp.zero(32 * 4 + 4);
    expect_fault(t, "misaligned vector load of 16 bytes", [&](int f) {
        LAUNCH((vector_kernel<float, 4>), 1, 32, 0, nullptr)(out.p, inp.p + f);
    });
    expect_fault(t, "misaligned vector store of 16 bytes", [&](int f) {
        bf16 *to = reinterpret_cast<bf16 *>(out.p), *from = reinterpret_cast<bf16 *>(inp.p);
        LAUNCH((vector_kernel<bf16, 8>), 1, 32, 0, nullptr)(to + f, from);
    });
}
__global__ void pair_kernel(double *out, const float *inp) {
    if (threadIdx.x == 0) out[0] = *reinterpret_cast<const double *>(inp);
}
static void misaligned_plain_accesses_are_caught(TestCtx *t) {
    Device out(2), inp(4);
    inp.zero(4);
    expect_fault(t, "misaligned", [&](int f) {
        LAUNCH(pair_kernel, 1, 32, 0, nullptr)(reinterpret_cast<double *>(out.p), inp.p + f);
    });
}

TEST_MAIN({"writing_behind_shared_memory_is_caught", writing_behind_shared_memory_is_caught},
          {"writing_outside_an_allocation_is_caught", writing_outside_an_allocation_is_caught},
          {"using_freed_memory_is_caught", using_freed_memory_is_caught},
          {"host_memory_is_not_for_kernels", host_memory_is_not_for_kernels},
          {"device_memory_is_not_for_the_host", device_memory_is_not_for_the_host},
          {"uninitialised_device_memory_is_caught", uninitialised_device_memory_is_caught},
          {"uninitialised_shared_memory_is_caught", uninitialised_shared_memory_is_caught},
          {"unwritten_registers_are_huge", unwritten_registers_are_huge},
          {"adding_to_what_was_never_written_is_caught",
           adding_to_what_was_never_written_is_caught},
          {"blocks_of_a_launch_are_not_ordered", blocks_of_a_launch_are_not_ordered},
          {"blocks_may_not_read_what_others_write", blocks_may_not_read_what_others_write},
          {"undefined_memory_is_not_to_be_read", undefined_memory_is_not_to_be_read},
          {"memory_beyond_what_is_used_is_caught", memory_beyond_what_is_used_is_caught},
          {"memory_freed_behind_a_launch_is_caught", memory_freed_behind_a_launch_is_caught},
          {"copies_of_freed_memory_are_caught", copies_of_freed_memory_are_caught},
          {"atomics_are_ordered_but_not_with_plain_accesses",
           atomics_are_ordered_but_not_with_plain_accesses},
          {"misaligned_vectors_are_caught", misaligned_vectors_are_caught},
          {"misaligned_plain_accesses_are_caught", misaligned_plain_accesses_are_caught})
