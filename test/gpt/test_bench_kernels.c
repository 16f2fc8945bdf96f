// test_bench_kernels.c - bench --only kernels: every op of the table is timed for every way to
// configure a variant, and the counts are those that the sizes give.
#include "gpt/bench.h"
#include "test/arrays.h"
#include "test/tiny_run.h"

#include <math.h>
#include <string.h>

static void open_tiny(Bench *b, const TinyVariant *v, Ops *ops, ElemType compute) {
    set_threads(1);
    *ops = *tiny_ops();
    bench_open(b);
    b->config = mem_alloc(1, sizeof(BenchConfig));
    snprintf(b->config[0].name, sizeof b->config[0].name, "tiny");
    tiny_config(&b->config[0].c, v->settings, NULL);
    b->n_configs = 1;
    b->compute[0] = compute, b->n_compute = 1;
    b->ops[0] = ops;
    b->sections = 1u << BENCH_KERNELS;
    b->batch = 2, b->repeat = 1, b->seconds = 0, b->quiet = true;
}

static int find(const BenchTable *t, const char *op) {
    for (int i = 0; i < t->n_rows; i++) {
        if (!strcmp(bench_get_text(t, i, KERNEL_OP), op)) return i;
    }
    return -1;
}

static void expect(TestCtx *t, const Bench *b, const char *op, double flops, double bytes) {
    const BenchTable *k = &b->table[BENCH_KERNELS];
    int i = find(k, op);
    CHECK_MSG(t, i >= 0, "%s is missing", op);
    if (i < 0) return;
    double f = bench_get(k, i, KERNEL_FLOPS), n = bench_get(k, i, KERNEL_BYTES);
    CHECK_MSG(t, flops > 0 ? f == flops : isnan(f), "%s: %g FLOP, expected %g", op, f, flops);
    CHECK_MSG(t, n == bytes, "%s: %g bytes, expected %g", op, n, bytes);
}

// Figures of all rows; shares are those of the peaks.
static void check_rows(TestCtx *t, const Bench *b, const char *label) {
    const BenchTable *k = &b->table[BENCH_KERNELS];
    CHECK_MSG(t, k->n_rows >= 50, "%s: %d ops", label, k->n_rows);
    for (int i = 0; i < k->n_rows; i++) {
        const char *op = bench_get_text(k, i, KERNEL_OP);
        double s = bench_get(k, i, KERNEL_SECONDS), rate = bench_get(k, i, KERNEL_BANDWIDTH);
        CHECK_MSG(t, s > 0 && isfinite(s), "%s: %s takes %g s", label, op, s);
        CHECK_MSG(t, fabs(rate * s - bench_get(k, i, KERNEL_BYTES)) <= 1e-9 * rate * s, "%s", op);
        CHECK_MSG(t, bench_get(k, i, KERNEL_BANDWIDTH_SHARE) == rate / 1e15, "%s", op);
        double speed = bench_get(k, i, KERNEL_SPEED);
        if (isnan(speed)) continue;
        CHECK_MSG(t, bench_get(k, i, KERNEL_SPEED_SHARE) == speed / 1e15, "%s: %s", label, op);
    }
}

static void every_variant_can_be_timed(TestCtx *t) {
    FOR_EACH_TINY(v) {
        Bench b;
        Ops ops;
        Error err;
        open_tiny(&b, v, &ops, (v - tiny_variants) % 2 ? TYPE_BF16 : TYPE_F32);
        CHECK_MSG(t, bench_run(&b, &err), "%s", err.text);
        check_rows(t, &b, v->label);
        bench_free(&b);
    }
}

// 2 layers x 32 channels, 4 heads of 8, MLP of 48, two sequences of 16.
static void counts_follow_from_the_sizes(TestCtx *t) {
    Bench b;
    Ops ops;
    Error err;
    open_tiny(&b, &tiny_variants[0], &ops, TYPE_F32);
    CHECK_MSG(t, bench_run(&b, &err), "%s", err.text);
    expect(t, &b, "matmul", 2.0 * 32 * 32 * 48, 4 * (32 * 32 + 32 * 48 + 32 * 48));
    expect(t, &b, "matmul_dw", 2.0 * 32 * 32 * 48, 4 * (32 * 32 + 32 * 48) + 8 * 32 * 48);
    expect(t, &b, "add_norm_forward", 0, 4 * 4 * 32 * 32 + 4 * 32);
    expect(t, &b, "act_backward swiglu", 0, 5 * 4 * 32 * 48);
    // 16 / 2 keys for a query, 2 products of 2 x 8 operations for each.
    expect(t, &b, "sdpa_forward", 32.0 * 4 * 8 * (2 * 2 * 8), 4 * 4 * 32 * 32 + 4 * 32 * 4);
    // Each of 2 queries meets 16 keys; the cache holds 2 x 16 tokens of 32 + 32 values.
    expect(t, &b, "sdpa_extend", 2.0 * 4 * 16 * (2 * 2 * 8), 4 * 2 * 16 * 64);
    expect(t, &b, "adamw", 0, 28 * 32 * 48);
    bench_free(&b);
}

// 4 heads of 8, latents of 12: a cached row serves all heads, once for keys and values. Decoupled,
// with 4 rotated values, which queries and keys have in addition; heads of 6 as values.
static void counts_of_mla_are_its_own(TestCtx *t) {
    for (int decoupled = 0; decoupled < 2; decoupled++) {
        Bench b;
        Ops ops;
        Error err;
        open_tiny(&b, &tiny_variants[decoupled ? 5 : 3], &ops, TYPE_F32);
        CHECK_MSG(t, bench_run(&b, &err), "%s", err.text);
        if (decoupled) {
            expect(t, &b, "sdpa_forward", 32.0 * 4 * 8 * 2 * (12 + 6),
                   4 * 32 * 4 * (12 + 12 + 6 + 6) + 4 * 32 * 4);
            expect(t, &b, "sdpa_extend", 2.0 * 4 * 16 * 2 * (16 + 12), 4 * 2 * 16 * 16);
        } else {
            expect(t, &b, "sdpa_lowrank_extend", 2.0 * 4 * 16 * 2 * (12 * 8 + 8 + 12),
                   4 * 2 * 16 * 12);
        }
        bench_free(&b);
    }
}

// Names in ops.h that no row begins with.
static void no_op_is_left_out(TestCtx *t) {
    static const char *const not_timed[] = {"alloc", "free", "sync", "measure_peaks",
                                            "weight_bytes"};
    char *text;
    Bench b;
    Ops ops;
    Error err;
    if (!file_read("kernels/ops.h", 1 << 20, &text, NULL, &err)) {
        test_skip(t, "kernels/ops.h is not here");
        return;
    }
    open_tiny(&b, &tiny_variants[4], &ops, TYPE_F32);
    CHECK_MSG(t, bench_run(&b, &err), "%s", err.text);
    const BenchTable *k = &b.table[BENCH_KERNELS];
    int found = 0;
    for (const char *at = strstr(text, "typedef struct Ops"); (at = strstr(at, "(*")); found++) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at + 2, ")"), at + 2);
        bool seen = false;
        for (size_t i = 0; i < sizeof not_timed / sizeof not_timed[0]; i++)
            seen = seen || !strcmp(name, not_timed[i]);
        for (int i = 0; i < k->n_rows && !seen; i++) {
            const char *op = bench_get_text(k, i, KERNEL_OP);
            size_t n = strcspn(op, " ");
            seen = n == strlen(name) && !strncmp(op, name, n);
        }
        CHECK_MSG(t, seen, "%s is not timed", name);
        at += 2;
    }
    CHECK_MSG(t, found > 40, "only %d ops in ops.h", found);
    bench_free(&b);
    mem_free(text);
}

TEST_MAIN({"every_variant_can_be_timed", every_variant_can_be_timed},
          {"counts_follow_from_the_sizes", counts_follow_from_the_sizes},
          {"counts_of_mla_are_its_own", counts_of_mla_are_its_own},
          {"no_op_is_left_out", no_op_is_left_out})
