// test_cuda_lowrank.c - low-rank keys and values in training, CUDA tables against the CPU's.
#include <string.h>

#include "test/kernels/cuda/twin.h"
#include "test/ref_attention.h"

// Lists of cases are shared out among the three thread orders of FOR_EACH_TABLE, to save time.
// pad: unused elements behind each row.
typedef struct Case {
    int B, T, NH, HS, R, pad;
    bool shared, rope, norm;
    bool moved, late;  // rows of the batch begin at other positions; angles one pair late
    bool inference;    // forward alone, keeping no rstd
} Case;

static void check_case(TestCtx *t, const Ops *g, Case c) {
    const Ops *o = ops_cpu();
    size_t rows = (size_t)c.B * c.T, heads = (size_t)c.NH, HS = (size_t)c.HS, R = (size_t)c.R;
    LowRankArgs a = {.B = c.B, .T = c.T, .NH = c.NH, .HS = c.HS, .R = c.R, .norm = c.norm};
    a.ld_s = HS + (size_t)c.pad, a.ld_z = heads * R + (size_t)c.pad;
    a.ld_out = heads * HS + (size_t)c.pad, a.eps = 1e-6f;
    int pos[] = {5, 2}, *gpos = twin_ints(g, pos, 2), positions = c.T + 5;
    float *table = ref_rope_table(positions, c.HS, 1000);
    size_t n_rope = (size_t)positions * HS, late = c.late ? 2 : 0;
    Twin rope = twin_new(g, TYPE_F32, n_rope + late);
    memcpy(rope.cpu + late, table, n_rope * sizeof *table);
    g->upload_bytes((float *)rope.gpu + late, table, n_rope * sizeof *table);
    LowRankArgs ga = a;
    if (c.moved) a.pos = pos, ga.pos = gpos;
    if (c.rope) a.rope = rope.cpu + late, ga.rope = (float *)rope.gpu + late;
    Twin s = c.shared ? twin_noise(g, TYPE_FX, rows * a.ld_s, 1, 1) : twin_null();
    Twin ds = c.shared ? twin_noise(g, TYPE_FX, rows * a.ld_s, 8, 1) : twin_null();
    Twin z = twin_noise(g, TYPE_FX, rows * a.ld_z, 2, 1);
    Twin b = twin_noise(g, TYPE_FX, heads * HS * R, 3, 1);
    Twin out = twin_noise(g, TYPE_FX, rows * a.ld_out, 4, 1);
    Twin rstd = twin_noise(g, TYPE_F32, rows * heads, 9, 1);  // left alone without norm
    Twin dout = twin_noise(g, TYPE_FX, rows * a.ld_out, 5, 1);
    Twin dz = twin_noise(g, TYPE_FX, rows * a.ld_z, 6, 1);
    Twin db = twin_noise(g, TYPE_F32, heads * HS * R, 7, 1);

    float *gpu_rstd = c.inference ? NULL : (float *)rstd.gpu;
    o->lowrank_forward(cpu(out), c.inference ? NULL : rstd.cpu, cpu(s), cpu(z), cpu(b), &a);
    g->lowrank_forward(gpu(out), gpu_rstd, gpu(s), gpu(z), gpu(b), &ga);
    double tol = twin_tol(g, TYPE_FX, R + HS);
    TWIN_CHECK(t, g, out, tol, 0);
    TWIN_CHECK(t, g, rstd, twin_tol(g, TYPE_F32, HS), 0);
    if (!c.inference) {
        o->lowrank_backward(cpu(ds), cpu(dz), db.cpu, cpu(dout), cpu(out), rstd.cpu, cpu(z), cpu(b),
                            &a);
        g->lowrank_backward(gpu(ds), gpu(dz), (float *)db.gpu, gpu(dout), gpu(out),
                            (float *)rstd.gpu, gpu(z), gpu(b), &ga);
        if (c.shared) TWIN_CHECK(t, g, ds, 3 * tol, 0);
        TWIN_CHECK(t, g, dz, 3 * tol, 0);
        TWIN_CHECK(t, g, db, is_bf16(g) ? 2 * 0x1p-8 : twin_tol(g, TYPE_F32, rows + HS), 0);
    }
    TWIN_FREE(t, g, &rope, &s, &ds, &z, &b, &out, &rstd, &dout, &dz, &db);
    g->free(gpos);
    mem_free(table);
}

static void every_switch_matches(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        for (int bits = table_ / 2; bits < 8; bits += 3)
            check_case(
                t, g,
                (Case){2, 11, 3, 16, 8, 0, .shared = bits & 1, .rope = bits & 2, .norm = bits & 4});
    }
}

static void inference_matches(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        Case c = {2, 5, 2, 16, 8, 0, .shared = true, .rope = true, .norm = true, .inference = true};
        check_case(t, g, c);
        c.HS = 64;
        check_case(t, g, c);
    }
}

static void ranks_of_the_paper_match(TestCtx *t) {
    const Ops *g;
    static const int ranks[] = {16, 48, 56, 64, 72, 128};
    FOR_EACH_TABLE(g) {
        for (size_t i = (size_t)table_ / 2; i < sizeof ranks / sizeof ranks[0]; i += 3)
            check_case(
                t, g,
                (Case){1, 33, 2, 128, ranks[i], 8, .shared = true, .rope = true, .norm = true});
        check_case(t, g, (Case){1, 70, 1, 64, 24, 0, .shared = true, .rope = true, .norm = true});
    }
}

static void moved_rows_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        check_case(
            t, g,
            (Case){2, 3, 2, 16, 8, 0, .shared = true, .rope = true, .norm = true, .moved = true});
        check_case(t, g, (Case){2, 3, 2, 64, 16, 0, .shared = true, .rope = true, .moved = true});
    }
}

// One array at a time lies behind its alignment; the angles may not.
static void unaligned_arrays_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        for (int k = 2; k <= 10; k++) {
            twin_misalign(k);
            check_case(t, g,
                       (Case){1, 3, 2, 64, 16, 0, .shared = true, .rope = true, .norm = true});
        }
        check_case(
            t, g,
            (Case){1, 3, 2, 64, 16, 0, .shared = true, .rope = true, .norm = true, .late = true});
        check_case(t, g, (Case){1, 3, 2, 64, 16, 4, .shared = true, .rope = true, .norm = true});
        check_case(t, g, (Case){1, 3, 2, 16, 8, 4, .shared = true, .rope = true, .norm = true});
    }
}

static void wide_heads_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        check_case(t, g, (Case){1, 2, 2, 528, 8, 0, .shared = true, .rope = true, .norm = true});
        check_case(t, g, (Case){1, 2, 1, 514, 3, 0, .shared = true, .rope = true, .norm = true});
        check_case(t, g, (Case){1, 3, 1, 784, 8, 0, .shared = true, .rope = true, .norm = true});
    }
}

// 99 KB of shared memory, and less than any device has; the emulator refuses more.
static void small_devices_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        cuda_limit_shared(99 << 10);
        check_case(t, g, (Case){1, 33, 2, 128, 72, 8, .shared = true, .rope = true, .norm = true});
        if (table_ / 2 == 1) cuda_limit_shared(48 << 10);
        check_case(t, g, (Case){1, 70, 1, 64, 56, 0, .shared = true, .rope = true, .norm = true});
        cuda_limit_shared(0);
    }
}

static void small_devices_match_in_every_order(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        cuda_limit_shared(99 << 10);
        check_case(t, g, (Case){1, 5, 1, 128, 8, 0, .shared = true, .rope = true, .norm = true});
        cuda_limit_shared(0);
    }
}

static void odd_sizes_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        check_case(t, g, (Case){1, 9, 2, 10, 5, 1, .shared = true, .rope = true, .norm = true});
        check_case(t, g, (Case){2, 3, 1, 7, 3, 3, .shared = true, .norm = true});
        check_case(t, g, (Case){1, 5, 2, 9, 66, 0, .norm = false});
        check_case(t, g, (Case){1, 3, 1, 200, 8, 0, .shared = true, .rope = true, .norm = true});
    }
}

static void many_tokens_match(TestCtx *t) {
    const Ops *g;
    FOR_EACH_TABLE(g) {
        check_case(t, g, (Case){2, 300, 2, 16, 8, 0, .shared = true, .rope = true, .norm = true});
        if (!is_bf16(g)) continue;
        // As many heads as blocks of tensor cores: each of them goes on to the next tile of tokens,
        // and the next.
        check_case(t, g, (Case){1, 128, 9, 64, 8, 0, .shared = true, .rope = true, .norm = true});
        check_case(t, g, (Case){1, 135, 9, 128, 8, 0, .shared = true, .rope = true, .norm = true});
    }
}

TEST_MAIN({"every_switch_matches", every_switch_matches}, {"inference_matches", inference_matches},
          {"moved_rows_match", moved_rows_match},
          {"unaligned_arrays_match", unaligned_arrays_match},
          {"wide_heads_match", wide_heads_match},
          {"ranks_of_the_paper_match", ranks_of_the_paper_match},
          {"small_devices_match", small_devices_match},
          {"small_devices_match_in_every_order", small_devices_match_in_every_order},
          {"odd_sizes_match", odd_sizes_match}, {"many_tokens_match", many_tokens_match})
