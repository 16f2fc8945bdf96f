// test_ops_embed.c - embeddings of every instruction set: any width, any distribution of tokens.
#include <string.h>

#include "test/arrays.h"
#include "test/ref_ops.h"

typedef struct Case {
    int B, T, C, V;
    int same;  // of ten tokens, how many are token V/2
} Case;

static int *ids_make(Case c) {
    size_t n = (size_t)c.B * (size_t)c.T;
    int *ids = mem_alloc(n, sizeof(int));
    float *f = mem_alloc(n, sizeof(float));
    test_noise(f, n, 9, 1);
    for (size_t i = 0; i < n; i++) {
        ids[i] = min_int((int)((f[i] + 1) * 0.5f * (float)c.V), c.V - 1);
        if ((int)(i % 10) < c.same) ids[i] = c.V / 2;
    }
    mem_free(f);
    return ids;
}

static void check_backward(TestCtx *t, const Ops *ops, Case c) {
    size_t rows = (size_t)c.B * (size_t)c.T, C = (size_t)c.C, table = (size_t)c.V * C;
    size_t places = (size_t)c.T * C;
    int *ids = ids_make(c);
    float *dout = floats_noise(rows * C, 1, 1);
    double *dd = doubles_of(dout, rows * C);
    double *dwte_ref = doubles_new(table), *dwpe_ref = doubles_new(places);
    for (size_t i = 0; i < table; i++)
        dwte_ref[i] = 2;  // the ops accumulate
    for (size_t i = 0; i < places; i++)
        dwpe_ref[i] = 2;
    ref_embed_backward(dwte_ref, dwpe_ref, dd, ids, c.B, c.T, c.C);
    float *dwte[3], *dwpe[3];
    for (int k = 0; k < 3; k++) {
        dwte[k] = floats_new(table);
        dwpe[k] = floats_new(places);
        for (size_t i = 0; i < table; i++)
            dwte[k][i] = 2;
        for (size_t i = 0; i < places; i++)
            dwpe[k][i] = 2;
        set_threads(k + 1);
        ops->embed_backward(dwte[k], dwpe[k], fx(dout), ids, c.B, c.T, c.C);
    }
    set_threads(0);
    CHECK_CLOSE_F64(t, dwte[1], dwte_ref, .what = "dwte", .n = table, .rel_tol = sum_tol(rows));
    CHECK_CLOSE_F64(t, dwpe[1], dwpe_ref, .what = "dwpe", .n = places,
                    .rel_tol = sum_tol((size_t)c.B));
    for (int k = 0; k < 3; k++) {
        CHECK_SAME_BITS(t, dwte[1], dwte[k], table * sizeof(float));
        CHECK_SAME_BITS(t, dwpe[1], dwpe[k], places * sizeof(float));
    }
    for (int k = 0; k < 3; k++) {
        floats_free(t, dwte[k]);
        floats_free(t, dwpe[k]);
    }
    floats_free(t, dout);
    mem_free(ids);
    mem_free(dd);
    mem_free(dwte_ref);
    mem_free(dwpe_ref);
}

static void backward_matches_the_reference_at_all_widths(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (const int *C = TEST_WIDTHS; *C; C++) {
            check_backward(t, ops, (Case){3, 17, *C, 29, 0});
            check_backward(t, ops, (Case){1, 1, *C, 3, 0});
        }
    }
}

// Text has a few tokens that make up much of it; a row shared by many must not lose its order.
static void backward_handles_one_token_in_most_rows(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        check_backward(t, ops, (Case){4, 500, 40, 100, 5});
        check_backward(t, ops, (Case){4, 500, 72, 100, 10});
        check_backward(t, ops, (Case){2, 350, 33, 50304, 3});
    }
}

static void backward_leaves_out_what_is_null(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        const int ids[2] = {1, 1};
        float dout[2] = {3, 4}, dwte[2] = {1, 1}, dwpe[2] = {1, 1};
        ops->embed_backward(dwte, NULL, fx(dout), ids, 1, 2, 1);
        CHECK(t, dwte[0] == 1 && dwte[1] == 8);
        ops->embed_backward(NULL, dwpe, fx(dout), ids, 1, 2, 1);
        CHECK(t, dwpe[0] == 4 && dwpe[1] == 5 && dwte[1] == 8);
    }
}

static void forward_adds_positions_and_stops_at_the_last(TestCtx *t) {
    enum { B = 2, T = 60, V = 11, PLACES = 64 };
    const int pos[B] = {0, 10};  // row 1 runs over the end of the table
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (const int *C = TEST_WIDTHS; *C; C++) {
            size_t n = (size_t)B * T * (size_t)*C, table = (size_t)V * (size_t)*C;
            size_t places = (size_t)PLACES * (size_t)*C;
            int *ids = ids_make((Case){B, T, *C, V, 0});
            float *wte = floats_noise(table, 1, 1), *wpe = floats_noise(places, 2, 1);
            float *out = floats_new(n);
            double *wte_d = doubles_of(wte, table), *wpe_d = doubles_of(wpe, places);
            double *expected = doubles_new(n);
            for (int k = 0; k < 3; k++) {
                const int *p = k == 1 ? pos : NULL;
                ops->embed_forward(fx(out), ids, fx(wte), k == 2 ? NULL : fx(wpe), PLACES, p, B, T,
                                   *C);
                ref_embed_forward(expected, ids, wte_d, k == 2 ? NULL : wpe_d, PLACES, p, B, T, *C);
                CHECK_CLOSE_F64(t, out, expected, .what = "out", .n = n, .rel_tol = 0x1p-24);
            }
            floats_free(t, wte);
            floats_free(t, wpe);
            floats_free(t, out);
            mem_free(ids);
            mem_free(wte_d);
            mem_free(wpe_d);
            mem_free(expected);
        }
    }
}

TEST_MAIN({"backward_matches_the_reference_at_all_widths",
           backward_matches_the_reference_at_all_widths},
          {"backward_handles_one_token_in_most_rows", backward_handles_one_token_in_most_rows},
          {"backward_leaves_out_what_is_null", backward_leaves_out_what_is_null},
          {"forward_adds_positions_and_stops_at_the_last",
           forward_adds_positions_and_stops_at_the_last})
