// test_cuda_table.c - the CUDA tables as a whole: nothing is missing, memory, devices, peaks.
#include <math.h>
#include <string.h>

#include "test/kernels/cuda/twin.h"

static void no_op_is_missing(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        void (*op[(sizeof(Ops) - offsetof(Ops, alloc)) / sizeof(void (*)(void))])(void);
        memcpy(op, (const char *)g + offsetof(Ops, alloc), sizeof op);
        for (size_t i = 0; i < sizeof op / sizeof op[0]; i++) {
            CHECK_MSG(t, op[i], "op %zu behind alloc is missing", i);
        }
        CHECK(t, !strcmp(g->name, "cuda") && !strncmp(g->isa, "sm_", 3));
        CHECK(t, g->elem_size == 2 || g->elem_size == 4);
    }
}

// More uploads than there are pieces of pinned memory, and one that is longer than all of them: the
// host changes its memory at once and waits for nothing.
static void uploads_do_not_wait(TestCtx *t) {
    enum { N = 12 << 20, SMALL = 40, BYTES = 100 };
    const Ops *g;
    FOR_EACH_TABLE(g) {
        char *big = mem_alloc(N, 1), *back = mem_alloc(N, 1), small[BYTES];
        char *p = g->alloc(N), *q = g->alloc(SMALL * BYTES);
        g->sync();
        size_t waits = cuda_waits();
        for (int i = 0; i < SMALL; i++) {
            memset(small, i + 1, BYTES);
            g->upload_bytes(q + i * BYTES, small, BYTES);
        }
        for (size_t i = 0; i < N; i++)
            big[i] = (char)(i % 251);
        g->upload_bytes(p, big, N);
        memset(big, 0, N);
        CHECK(t, cuda_waits() == waits);
        g->download_bytes(back, q, SMALL * BYTES);
        CHECK(t, cuda_waits() == waits + 1);
        for (int i = 0; i < SMALL * BYTES; i++)
            CHECK(t, back[i] == i / BYTES + 1);
        g->download_bytes(back, p, N);
        size_t wrong = 0;
        for (size_t i = 0; i < N; i++)
            wrong += back[i] != (char)(i % 251);
        CHECK_MSG(t, wrong == 0, "%zu bytes arrived wrong", wrong);
        g->free(p);
        g->free(q);
        mem_free(big);
        mem_free(back);
    }
}

static void a_missing_device_is_a_sentence(TestCtx *t) {
    Error err;
    cuda_close();
    CHECK(t, !cuda_open(1000, &err));
    CHECK_ERROR(t, err, "GPU 1000 does not exist");
    CHECK(t, !cuda_open(-1, &err));
    CHECK_ERROR(t, err, "GPU -1 does not exist");
    CHECK(t, cuda_open(0, &err));
    CHECK(t, cuda_open(0, &err));
    CHECK(t, !cuda_open(1, &err));
    CHECK_ERROR(t, err, "uses GPU 0 already");
}

// Whole pieces of 8 at aligned and unaligned addresses, and more than a block of threads of them.
static void conversions_take_any_address(TestCtx *t) {
    const Ops *g;
    enum { N = 2064 };
    FOR_EACH_TABLE(g) {
        float x[N], back[N + 1];
        test_noise(x, N, 1, 3);
        for (size_t shift = 0; shift < 2; shift++) {
            floatX *p = g->alloc((N + 1) * g->elem_size);
            g->upload(fx_at(g, p, shift), x, N);
            g->download(back, p, N + 1);
            CHECK(t, back[shift ? 0 : N] == 0.0f);
            g->download(back, fx_at(g, p, shift), N);
            for (int i = 0; i < N; i++)
                CHECK(t, back[i] == (is_bf16(g) ? bf16_to_f32(bf16_from_f32(x[i])) : x[i]));
            g->free(p);
        }
    }
}

static void memory_is_cleared_copied_and_converted(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        enum { N = 1003 };
        float *x = floats_noise(N, 1, 3), back[N];
        floatX *p = g->alloc(N * g->elem_size), *q = g->alloc(N * g->elem_size);
        g->download(back, p, N);
        for (int i = 0; i < N; i++)
            CHECK(t, back[i] == 0.0f);
        g->upload(p, x, N);
        g->copy(fx_at(g, q, 1), fx_at(g, p, 1), (N - 1) * g->elem_size);
        g->download(back, q, N);
        for (int i = 0; i < N; i++) {
            float want = i == 0 ? 0 : is_bf16(g) ? bf16_to_f32(bf16_from_f32(x[i])) : x[i];
            CHECK(t, back[i] == want);
        }
        g->zero(q, N * g->elem_size);
        g->sync();
        g->download(back, q, N);
        for (int i = 0; i < N; i++)
            CHECK(t, back[i] == 0.0f);
        g->free(p), g->free(q), g->free(NULL);
        floats_free(t, x);
    }
}

static void peaks_are_measured(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        Peaks p = {0};
        g->measure_peaks(&p);
        CHECK(t, p.fma_flops > 0 && isfinite(p.fma_flops));
        CHECK(t, p.bf16_flops > 0 && isfinite(p.bf16_flops) && p.has_bf16);
        CHECK(t, p.read_bytes > 0 && isfinite(p.read_bytes));
    }
}

static void shared_memory_is_limited_and_given_back(TestCtx *t) {
    const Ops *g = twin_table(0);
    size_t all = cuda_limit_shared(0);
    CHECK(t, g && all >= 99 << 10);
    CHECK(t, cuda_limit_shared(50 << 10) == 50 << 10);
    CHECK(t, cuda_limit_shared(all + 1) == all);
    CHECK(t, cuda_limit_shared(50 << 10) == 50 << 10 && cuda_limit_shared(0) == all);
}

TEST_MAIN({"no_op_is_missing", no_op_is_missing}, {"uploads_do_not_wait", uploads_do_not_wait},
          {"a_missing_device_is_a_sentence", a_missing_device_is_a_sentence},
          {"memory_is_cleared_copied_and_converted", memory_is_cleared_copied_and_converted},
          {"conversions_take_any_address", conversions_take_any_address},
          {"shared_memory_is_limited_and_given_back", shared_memory_is_limited_and_given_back},
          {"peaks_are_measured", peaks_are_measured})
