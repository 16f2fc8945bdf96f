// test_ops_heads.c - heads put together and taken apart, biases, of every instruction set.
#include "test/arrays.h"
#include "test/ref_ops.h"

typedef struct Case {
    size_t N;
    int NH, W1, W2;
    bool shared, only_b;
} Case;

static void check_case(TestCtx *t, const Ops *ops, Case k) {
    size_t w1 = (size_t)k.W1, w2 = (size_t)k.W2, NH = (size_t)k.NH;
    ConcatArgs c = {k.N,
                    k.NH,
                    k.W1,
                    k.W2,
                    NH * (w1 + w2) + 3,
                    NH * (w1 + 2) + 1,
                    (k.shared ? w2 : NH * (w2 + 1)) + 2,
                    w1 + 2,
                    k.shared ? 0 : w2 + 1};
    size_t n_out = k.N * c.ld_out, n_a = k.N * c.ld_a, n_b = k.N * c.ld_b;
    float *a = floats_noise(n_a, 1, 1), *b = floats_noise(n_b, 2, 1);
    float *out = floats_noise(n_out, 3, 1);
    double *ad = doubles_of(a, n_a), *bd = doubles_of(b, n_b), *ref = doubles_of(out, n_out);
    // What lies between the parts keeps its values: all of the buffers are compared.
    ref_concat_heads(ref, k.only_b ? NULL : ad, bd, &c);
    ops->concat_heads(fx(out), k.only_b ? NULL : fx(a), fx(b), &c);
    CHECK_CLOSE_F64(t, out, ref, .what = "out", .n = n_out, .abs_tol = 0);
    ref_split_heads(ad, bd, ref, &c);
    ops->split_heads(fx(a), fx(b), fx(out), &c);
    CHECK_CLOSE_F64(t, a, ad, .what = "da", .n = n_a, .abs_tol = 0);
    CHECK_CLOSE_F64(t, b, bd, .what = "db", .n = n_b, .rel_tol = sum_tol(NH));
    floats_free(t, a);
    floats_free(t, b);
    floats_free(t, out);
    mem_free(ad);
    mem_free(bd);
    mem_free(ref);
}

static void parts_of_heads_go_to_their_places_and_back(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (int bits = 0; bits < 4; bits++) {
            bool shared = bits & 1, only_b = bits & 2;
            check_case(t, ops, (Case){1, 1, 1, 1, shared, only_b});
            check_case(t, ops, (Case){7, 3, 64, 32, shared, only_b});
            check_case(t, ops, (Case){67, 5, 128, 17, shared, only_b});
        }
    }
}

static void biases_are_added_to_their_columns_only(TestCtx *t) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        for (const int *W = TEST_WIDTHS; *W; W++) {
            size_t N = 33, ld = (size_t)*W + 5, n = N * ld;
            float *out = floats_noise(n, 1, 1), *bias = floats_noise((size_t)*W, 2, 1);
            double *ref = doubles_of(out, n);
            for (size_t i = 0; i < n; i++)
                ref[i] += i % ld < (size_t)*W ? (double)bias[i % ld] : 0;
            ops->bias_add(fx(out), ld, bias, N, *W);
            CHECK_CLOSE_F64(t, out, ref, .what = "out", .n = n, .rel_tol = 0x1p-24);
            floats_free(t, out);
            floats_free(t, bias);
            mem_free(ref);
        }
    }
}

TEST_MAIN({"parts_of_heads_go_to_their_places_and_back",
           parts_of_heads_go_to_their_places_and_back},
          {"biases_are_added_to_their_columns_only", biases_are_added_to_their_columns_only})
