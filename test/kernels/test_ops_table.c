// test_ops_table.c - the table itself: complete, found by name and by environment; its memory.
#define _XOPEN_SOURCE 700
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/arrays.h"

static void every_entry_is_filled(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        // Everything behind elem_size is a function pointer.
        const unsigned char *p = (const unsigned char *)ops;
        for (size_t at = offsetof(Ops, alloc); at < sizeof(Ops); at += sizeof(void (*)(void))) {
            bool null = true;
            for (size_t i = 0; i < sizeof(void (*)(void)); i++)
                null = null && p[at + i] == 0;
            CHECK_MSG(t, !null, "%s: entry at byte %zu is NULL", ops->isa, at);
        }
        CHECK(t, strcmp(ops->name, "cpu") == 0 && ops->elem_size == sizeof(float));
        CHECK(t, ops_cpu_isa(ops->isa) == ops);
    }
    CHECK(t, ops_set(0) && strcmp(ops_set(0)->isa, "base") == 0);
    CHECK(t, ops_cpu_isa("mmx") == NULL);
}

// Exit status of a child that asks for the table with TRAIN_GPT_ISA set; 0 when it got that one.
static int child_asks_for(const char *isa) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(3);
        if (setenv("TRAIN_GPT_ISA", isa, 1)) _exit(3);
        _exit(strcmp(ops_cpu()->isa, isa) == 0 ? 0 : 2);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void the_environment_picks_a_set(TestCtx *t) {
    int best = 0;
    while (ops_set(best + 1))
        best++;
    unsetenv("TRAIN_GPT_ISA");
    // The last set is the fastest, but for bf16 products on other processors than AMD's.
#if defined(__x86_64__)
    bool slow_bf16 = strcmp(ops_set(best)->isa, "avx512bf16") == 0 && !__builtin_cpu_is("amd");
    if (slow_bf16 && ops_cpu_isa("avx512")) best--;
#endif
    CHECK_MSG(t, ops_cpu() == ops_set(best), "%s, expected %s", ops_cpu()->isa, ops_set(best)->isa);
    const Ops *ops;
    FOR_EACH_SET(ops) CHECK(t, child_asks_for(ops->isa) == 0);
    CHECK(t, child_asks_for("avx9000") == 1);
    static const char *const names[] = {"avx2", "avx512", "avx512bf16"};
    for (int i = 0; i < 3; i++)
        CHECK(t, child_asks_for(names[i]) == (ops_cpu_isa(names[i]) ? 0 : 1));
}

static void memory_is_cleared_and_aligned(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        static const size_t sizes[] = {0, 1, 63, 64, 4097, 3 << 20};
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            size_t n = sizes[i];
            unsigned char *p = ops->alloc(n);
            CHECK(t, (uintptr_t)p % 64 == 0);
            size_t dirty = 0;
            for (size_t k = 0; k < n; k++)
                dirty += p[k] != 0;
            CHECK_MSG(t, dirty == 0, "%zu of %zu bytes are not zero", dirty, n);
            if (n) memset(p, 0xA5, n);
            ops->free(p);
        }
        ops->free(NULL);
    }
}

// Arenas are sized for the largest case; what nobody writes to must not become resident.
static void untouched_memory_is_not_resident(TestCtx *t) {
    const size_t bytes = (size_t)1 << 30;
    const Ops *ops = ops_set(0);
    size_t before = peak_rss_bytes();
    char *p = ops->alloc(bytes);
    p[0] = p[bytes - 1] = 1;
    size_t grown = peak_rss_bytes() - before;
    // the address sanitizer's own bookkeeping is an eighth
    CHECK_MSG(t, grown < bytes / 4, "%zu MiB became resident", grown >> 20);
    ops->free(p);
}

static void copies_and_zeroes_are_exact(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        enum { N = 900001 };  // more than one piece per thread
        float *src = floats_noise(N, 1, 1), *dst = floats_new(N);
        floatX *x = ops->alloc(N * sizeof(float));
        ops->upload(x, src, N);
        ops->download(dst, x, N);
        ops->sync();
        CHECK_SAME_BITS(t, src, dst, N * sizeof(float));
        ops->zero(fx_at(ops, x, 3), (N - 4) * sizeof(float));
        ops->download_bytes(dst, x, N * sizeof(float));
        size_t dirty = 0;
        for (size_t i = 3; i < N - 1; i++)
            dirty += dst[i] != 0;
        CHECK(t, dirty == 0 && dst[2] == src[2] && dst[N - 1] == src[N - 1]);
        ops->upload_bytes(x, src, N * sizeof(float));
        floatX *y = ops->alloc(N * sizeof(float));
        ops->copy(y, x, N * sizeof(float));
        ops->download(dst, y, N);
        CHECK_SAME_BITS(t, src, dst, N * sizeof(float));
        ops->free(x);
        ops->free(y);
        floats_free(t, src);
        floats_free(t, dst);
    }
}

TEST_MAIN({"every_entry_is_filled", every_entry_is_filled},
          {"the_environment_picks_a_set", the_environment_picks_a_set},
          {"memory_is_cleared_and_aligned", memory_is_cleared_and_aligned},
          {"untouched_memory_is_not_resident", untouched_memory_is_not_resident},
          {"copies_and_zeroes_are_exact", copies_and_zeroes_are_exact})
