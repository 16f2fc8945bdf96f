// test_emu_sync.cu - faults of order that a GPU would pass over in silence: missing or divergent
// barriers, partial warps, asynchronous copies, launches over the limits.
// Kernels take `int fault`: 0 is the correct one.
#include "test/emu/faults.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

// --- Barriers.
__global__ void rotate_kernel(float *out, int fault) {
    SHARED(float, s);
    int i = threadIdx.x, n = blockDim.x;
    s[i] = (float)i;
    if (!fault) __syncthreads();
    out[i] = s[(i + 1) % n];
}
// In one order the reader comes first and finds nothing, in the other it finds the race.
static void a_removed_barrier_is_a_race(TestCtx *t) {
    Device out(64);
    expect_fault(t, "test_emu_", [&](int f) {
        LAUNCH(rotate_kernel, 1, 64, 256, nullptr)(out.p, f);
    });
    for (const char *order : emu_orders) {
        setenv("GPU_EMU_ORDER", order, 1);
        emu_catch(true);
        LAUNCH(rotate_kernel, 1, 64, 256, nullptr)(out.p, 1);
        CHECK_MSG(t,
                  strstr(emu_fault(), "never written") || strstr(emu_fault(), "without a barrier"),
                  "%s: '%s'", order, emu_fault());
    }
    emu_catch(false);
    unsetenv("GPU_EMU_ORDER");
}

__global__ void overwrite_kernel(float *out, int fault) {
    SHARED(float, s);
    int i = threadIdx.x, n = blockDim.x;
    s[i] = (float)i;
    __syncthreads();
    float x = s[(i + 1) % n];
    if (!fault) __syncthreads();
    s[i] = x;
    out[i] = x;
}
static void overwriting_what_others_still_read_is_a_race(TestCtx *t) {
    Device out(64);
    expect_fault(t, "without a barrier after the", [&](int f) {
        LAUNCH(overwrite_kernel, 1, 64, 256, nullptr)(out.p, f);
    });
}

__global__ void lanes_kernel(float *out, int fault) {
    SHARED(float, s);
    int i = threadIdx.x;
    s[i] = 0.0f;
    __syncwarp();
    s[i ^ 1] = (float)i;
    if (!fault) __syncwarp();
    out[i] = s[i];
}
static void lanes_of_a_warp_need_syncwarp(TestCtx *t) {
    Device out(64);
    expect_fault(t, "without a barrier after the", [&](int f) {
        LAUNCH(lanes_kernel, 1, 64, 256, nullptr)(out.p, f);
    });
}

__global__ void across_warps_kernel(float *out, int fault) {
    SHARED(float, s);
    int i = threadIdx.x;
    s[i] = (float)i;
    if (fault)
        __syncwarp();
    else
        __syncthreads();
    out[i] = s[(i + 32) % 64];
}
static void syncwarp_does_not_order_warps(TestCtx *t) {
    Device out(64);
    expect_fault(t, "test_emu_", [&](int f) {
        LAUNCH(across_warps_kernel, 1, 64, 256, nullptr)(out.p, f);
    });
}

__global__ void divergent_kernel(float *out, int fault) {
    int i = threadIdx.x;
    if (fault == 1 && i == 3) return;
    __syncthreads();
    if (i == 0) out[0] = 1.0f;
}
static void returning_before_a_barrier_is_divergence(TestCtx *t) {
    Device out(1);
    expect_fault(t, "divergent __syncthreads at ", [&](int f) {
        LAUNCH(divergent_kernel, 1, 64, 0, nullptr)(out.p, f);
    });
    emu_catch(true);
    LAUNCH(divergent_kernel, 1, 64, 0, nullptr)(out.p, 1);
    CHECK(t, strstr(emu_fault(), "divergent_kernel (launched at "));
    CHECK(t, strstr(emu_fault(), "block (0,0,0)"));
    CHECK(t, strstr(emu_fault(), "thread 3 has returned"));
    emu_catch(false);
}

__global__ void two_barriers_kernel(float *out, int fault) {
    int i = threadIdx.x;
    if (fault && i < 32)
        __syncthreads();
    else
        __syncthreads();
    if (i == 0) out[0] = 1.0f;
}
static void meeting_at_two_barriers_is_divergence(TestCtx *t) {
    Device out(1);
    expect_fault(t, "waits elsewhere: __syncthreads at ", [&](int f) {
        LAUNCH(two_barriers_kernel, 1, 64, 0, nullptr)(out.p, f);
    });
}

__global__ void shuffle_kernel(float *out, int fault) {
    int i = threadIdx.x;
    float x = (float)i;
    if (fault == 1 && i % 32 > 15)
        x = 0.0f;
    else
        x = warp_sum(x);
    if (i == 0) out[0] = x;
}
static void warp_operations_need_all_lanes(TestCtx *t) {
    Device out(1);
    expect_fault(t, "divergent shfl_xor", [&](int f) {
        LAUNCH(shuffle_kernel, 1, 64, 0, nullptr)(out.p, f);
    });
}

__global__ void leaver_kernel(float *out, int fault) {
    int i = threadIdx.x;
    if (fault && i == 7) return;
    float x = shuffle((float)i, 7);
    out[i] = x;
}
static void lanes_that_returned_give_nothing(TestCtx *t) {
    Device out(32);
    expect_fault(t, "thread 7 has returned", [&](int f) {
        LAUNCH(leaver_kernel, 1, 32, 0, nullptr)(out.p, f);
    });
}

__global__ void mask_kernel(float *out, int fault) {
    float x = __shfl_down_sync(fault ? 0xFFFFu : ~0u, (float)threadIdx.x, 1);
    out[threadIdx.x] = x;
}
static void partial_masks_are_refused(TestCtx *t) {
    Device out(64);
    expect_fault(t, "partial mask 0000ffff", [&](int f) {
        LAUNCH(mask_kernel, 1, 64, 0, nullptr)(out.p, f);
    });
}
static void warps_must_be_whole(TestCtx *t) {
    Device out(64);
    expect_fault(t, "multiple of 32", [&](int f) {
        LAUNCH(mask_kernel, 1, f ? 48 : 64, 0, nullptr)(out.p, 0);
    });
}

// --- Asynchronous copies.
__global__ void async_kernel(float *out, const float *inp, int fault) {
    SHARED(float, s);
    int i = threadIdx.x;
    cp_async_16(s + 4 * i, inp + 4 * i, i == 31 ? 0 : 16);
    cp_async_commit();
    cp_async_16(s + 128 + 4 * i, inp + 4 * i, 16);
    cp_async_commit();
    if (fault == 0) cp_async_wait<1>();
    __syncthreads();
    float x = s[(4 * i + 4) % 128] + s[127];
    cp_async_wait<0>();
    if (fault != 2) __syncthreads();
    out[i] = x + s[128 + (i + 1) % 32 * 4];
}
static void a_missing_async_wait_is_caught(TestCtx *t) {
    Device out(32), inp(128);
    inp.zero(128);
    expect_fault(t, "where a cp.async is in flight", [&](int f) {
        LAUNCH(async_kernel, 1, 32, 1024, nullptr)(out.p, inp.p, f);
    });
    expect_fault(t, "test_emu_", [&](int f) {
        LAUNCH(async_kernel, 1, 32, 1024, nullptr)(out.p, inp.p, 2 * f);
    });
}
// The copy was not committed: the wait does not reach it.
__global__ void forgotten_kernel(float *out, const float *inp, int fault) {
    SHARED(float, s);
    int i = threadIdx.x;
    cp_async_16(s + 4 * i, inp, 16);
    if (!fault) cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    out[i] = s[4 * i];
    if (fault) cp_async_commit();
    cp_async_wait<0>();
}
static void a_missing_commit_is_caught(TestCtx *t) {
    Device out(32), inp(4);
    inp.zero(4);
    expect_fault(t, "where a cp.async is in flight", [&](int f) {
        LAUNCH(forgotten_kernel, 1, 32, 512, nullptr)(out.p, inp.p, f);
    });
}
// fault 1: to an odd address, 2: from an odd address, 3: to device memory, 4: 8 bytes behind the
// end of the source, 5: twice to the same place.
__global__ void careless_kernel(float *out, const float *inp, int fault) {
    SHARED(float, s);
    int i = threadIdx.x;
    float *to = s + 4 * i + (fault == 1 ? 1 : 0);
    const float *from = inp + (fault == 2 ? 1 : fault == 4 ? 126 : 0);
    if (fault == 4 && i == 0) from = inp + 128;
    if (fault == 5 && i == 1) to = s;
    cp_async_16(fault == 3 ? out : to, from, fault == 4 && i > 0 ? 0 : 16);
    cp_async_commit();
    cp_async_wait<0>();
}
static void careless_async_copies_are_caught(TestCtx *t) {
    Device out(32), inp(128);
    inp.zero(128);
    static const char *const words[] = {"misaligned cp.async target", "misaligned cp.async source",
                                        "cp.async to byte", "out of bounds", "test_emu_sync.cu"};
    for (int kind = 1; kind <= 5; kind++) {
        expect_fault(t, words[kind - 1], [&](int f) {
            LAUNCH(careless_kernel, 1, 32, 528, nullptr)(out.p, inp.p, f ? kind : 0);
        });
    }
}
__global__ void matrix_kernel(float *out, int fault) {
    SHARED(bf16, s);
    unsigned r[4];
    for (int i = threadIdx.x; i < 512; i += 32)
        s[i].bits = 0;
    __syncwarp();
    ldmatrix_x4(r, fault == 2 ? (const bf16 *)out : s + 8 * threadIdx.x + fault);
    out[threadIdx.x] = (float)r[0];
}
static void careless_matrices_are_caught(TestCtx *t) {
    Device out(32);
    expect_fault(t, "misaligned ldmatrix row", [&](int f) {
        LAUNCH(matrix_kernel, 1, 32, 1024, nullptr)(out.p, f);
    });
    expect_fault(t, "ldmatrix from byte", [&](int f) {
        LAUNCH(matrix_kernel, 1, 32, 1024, nullptr)(out.p, 2 * f);
    });
}
__global__ void abandon_kernel(float *out, const float *inp, int fault) {
    SHARED(float, s);
    cp_async_16(s + 4 * threadIdx.x, inp, 16);
    cp_async_commit();
    if (!fault) cp_async_wait<0>();
    out[threadIdx.x] = 0.0f;
}
static void leaving_with_copies_in_flight_is_caught(TestCtx *t) {
    Device out(32), inp(4);
    inp.zero(4);
    expect_fault(t, "never waited for", [&](int f) {
        LAUNCH(abandon_kernel, 1, 32, 512, nullptr)(out.p, inp.p, f);
    });
}

// --- Barriers that vote.
__global__ void vote_kernel(float *out, int first, int second) {
    int i = (int)threadIdx.x;
    out[i] = (float)(__syncthreads_or(i == first) != 0);
    out[i] += 2.0f * (float)(__syncthreads_or(i == second) != 0);
    __syncthreads();
    out[i] += 4.0f * (float)(__syncthreads_or(0) != 0);
}

static void a_barrier_tells_whether_any_thread_voted(TestCtx *t) {
    for (int i = 0; i < 16; i++) {
        setenv("GPU_EMU_ORDER", emu_orders[i % 4], 1);
        int votes = i / 4, first = votes & 1 ? 95 : -1, second = votes & 2 ? 0 : -1;
        Device out(96);
        LAUNCH(vote_kernel, 1, 96, 0, nullptr)(out.p, first, second);
        float got[96];
        CUDA_CHECK(cudaMemcpyAsync(got, out.p, sizeof got, cudaMemcpyDeviceToHost, nullptr));
        CUDA_CHECK(cudaStreamSynchronize(nullptr));
        for (int k = 0; k < 96; k++)
            CHECK(t, got[k] == (float)votes);
    }
    unsetenv("GPU_EMU_ORDER");
}

// --- Limits.
__global__ void store_kernel(float *out, int at) {
    if (threadIdx.x == 0) out[at] = 1.0f;
}

static void launches_over_the_limit_are_refused(TestCtx *t) {
    Device out(1);
    auto run = [&](dim3 grid, dim3 block, size_t shared) {
        LAUNCH(store_kernel, grid, block, shared, nullptr)(out.p, 0);
    };
    expect_fault(t, "1025 x 1 x 1 threads", [&](int f) { run(1u, f ? 1025u : 1024u, 0); });
    expect_fault(t, "0 x 1 x 1 threads", [&](int f) { run(1u, f ? 0u : 32u, 0); });
    expect_fault(t, "shared memory", [&](int f) { run(1u, 32u, 227 * 1024 + (f ? 1 : 0)); });
    emu_limit_shared(99 * 1024);
    expect_fault(t, "shared memory", [&](int f) { run(1u, 32u, 99 * 1024 + (f ? 1 : 0)); });
    emu_limit_shared(227 * 1024);
    emu_catch(true);
    run(dim3(1, 65536), 32u, 0);
    CHECK(t, strstr(emu_fault(), "65535"));
    emu_catch(true);
    run(dim3(1, 0), 32u, 0);
    CHECK(t, strstr(emu_fault(), "grid of 1 x 0"));
    EmuLaunch l = {reinterpret_cast<const void *>(shuffle_kernel),
                   "k",
                   "f",
                   1,
                   1u,
                   32u,
                   49153,
                   nullptr,
                   nullptr,
                   0};
    emu_catch(true);
    emu_launch(l);
    CHECK(t, strstr(emu_fault(), "cudaFuncSetAttribute must allow it first"));
    emu_catch(false);
}
// Counts are checked before they are cut to 32 bits.
static void counts_beyond_a_grid_end_the_program(TestCtx *t) {
    static const size_t counts[] = {0, 1, 0x7FFFFFFF, 0x80000000, ((size_t)1 << 32) + 5};
    for (size_t n : counts) {
        fflush(nullptr);
        pid_t pid = fork();
        if (pid == 0) {
            if (!freopen("/dev/null", "w", stderr)) _exit(3);
            Grid grid(n);
            _exit(grid.d.x == n ? 0 : 2);
        }
        int status = 0;
        waitpid(pid, &status, 0);
        CHECK_MSG(t,
                  WIFEXITED(status) && WEXITSTATUS(status) == (n == 1 || n == 0x7FFFFFFF ? 0 : 1),
                  "%zu blocks: status %d", n, status);
    }
}
static void an_unknown_order_is_refused(TestCtx *t) {
    Device out(1);
    setenv("GPU_EMU_ORDER", "backward", 1);
    emu_catch(true);
    LAUNCH(store_kernel, 1, 32, 0, nullptr)(out.p, 0);
    CHECK(t, strstr(emu_fault(), "found 'backward'"));
    emu_catch(false);
    unsetenv("GPU_EMU_ORDER");
}

TEST_MAIN({"a_removed_barrier_is_a_race", a_removed_barrier_is_a_race},
          {"overwriting_what_others_still_read_is_a_race",
           overwriting_what_others_still_read_is_a_race},
          {"lanes_of_a_warp_need_syncwarp", lanes_of_a_warp_need_syncwarp},
          {"syncwarp_does_not_order_warps", syncwarp_does_not_order_warps},
          {"returning_before_a_barrier_is_divergence", returning_before_a_barrier_is_divergence},
          {"meeting_at_two_barriers_is_divergence", meeting_at_two_barriers_is_divergence},
          {"warp_operations_need_all_lanes", warp_operations_need_all_lanes},
          {"lanes_that_returned_give_nothing", lanes_that_returned_give_nothing},
          {"partial_masks_are_refused", partial_masks_are_refused},
          {"warps_must_be_whole", warps_must_be_whole},
          {"a_missing_async_wait_is_caught", a_missing_async_wait_is_caught},
          {"a_missing_commit_is_caught", a_missing_commit_is_caught},
          {"careless_async_copies_are_caught", careless_async_copies_are_caught},
          {"careless_matrices_are_caught", careless_matrices_are_caught},
          {"leaving_with_copies_in_flight_is_caught", leaving_with_copies_in_flight_is_caught},
          {"a_barrier_tells_whether_any_thread_voted", a_barrier_tells_whether_any_thread_voted},
          {"launches_over_the_limit_are_refused", launches_over_the_limit_are_refused},
          {"counts_beyond_a_grid_end_the_program", counts_beyond_a_grid_end_the_program},
          {"an_unknown_order_is_refused", an_unknown_order_is_refused})
