// test_sizes.c - what follows from the tables of every variant without running it: parameter counts
// and cache sizes by closed formulas (lrkv.md section 2 and 4c), initial values, refused sizes.
#include <math.h>
#include <string.h>

#include "attention/attention.h"
#include "test/test.h"

// The paper's two models: 128M and 2.5B.
static const AttnDims M128 = {.B = 1,
                              .T = 1,
                              .Tmax = 64,
                              .C = 768,
                              .NH = 6,
                              .NKV = 6,
                              .HS = 128,
                              .HV = 128,
                              .residual_ratio = 0.1f,
                              .eps = 1e-6f,
                              .position = POSITION_ROPE};
static const AttnDims B25 = {.B = 1,
                             .T = 1,
                             .Tmax = 64,
                             .C = 2304,
                             .NH = 18,
                             .NKV = 18,
                             .HS = 128,
                             .HV = 128,
                             .residual_ratio = 0.1f,
                             .eps = 1e-6f,
                             .position = POSITION_ROPE};

static int64_t count(const char *name, const AttnDims *d) {
    TensorTable t = {.elem_size = 4};
    TensorSpec rows[ATTN_MAX_TENSORS] = {{0}};
    tensor_table_add(&t, "", 0, rows, attention_find(name)->params(rows, d));
    int64_t n = (int64_t)tensor_count(&t);
    tensor_table_free(&t);
    return n;
}

static AttnDims gqa(AttnDims d, int heads) {
    d.NKV = heads;
    return d;
}
static AttnDims mla(AttnDims d, int RKV, int HR) {
    d.RKV = RKV, d.HR = HR;
    return d;
}
static AttnDims lrkv(AttnDims d, int R) {
    d.R = R;
    return d;
}

#define CHECK_COUNT(name, dims, expected)                                                          \
    do {                                                                                           \
        AttnDims dims_ = (dims);                                                                   \
        int64_t n_ = count((name), &dims_), e_ = (int64_t)(expected);                              \
        CHECK_MSG(t, n_ == e_, "%s: %lld parameters, expected %lld", (name), (long long)n_,        \
                  (long long)e_);                                                                  \
    } while (0)

static void parameters_are_counted_by_the_formulas(TestCtx *t) {
    int64_t d = 768, H = 6, hs = 128, qo = 2 * d * H * hs;
    CHECK_COUNT("mha", M128, qo + 2 * d * H * hs);
    CHECK_COUNT("gqa", gqa(M128, 3), qo + 2 * d * 3 * hs);
    CHECK_COUNT("mqa", gqa(M128, 1), qo + 2 * d * hs);
    CHECK_COUNT("mla", mla(M128, 128, 0), qo + d * 128 + 2 * 128 * H * hs);
    CHECK_COUNT("mla", mla(M128, 128, 64), qo + d * 128 + 2 * 128 * H * hs + d * H * 64 + d * 64);
    CHECK_COUNT("lrkv", lrkv(M128, 46), qo + 2 * d * hs + 2 * H * 46 * (d + hs));
    CHECK_COUNT("lrkv", lrkv(M128, 0), qo + 2 * d * hs);
    CHECK_COUNT("lrkv", lrkv(B25, 55),
                2 * 2304 * 2304LL + 2 * 2304 * 128 + 2 * 18 * 55 * (2304 + 128LL));
    AttnDims q = mla(M128, 128, 0);
    q.RQ = 200;
    CHECK_COUNT("mla", q, d * H * hs + 200 * (d + H * hs) + d * 128 + 2 * 128 * H * hs);
}

static void biases_are_counted_by_the_formulas(TestCtx *t) {
    AttnDims with = M128;
    with.bias = true;
    int64_t d = 768, H = 6, hs = 128;
    CHECK_COUNT("gqa", gqa(with, 3),
                count("gqa", &(AttnDims){.C = 768, .NH = 6, .NKV = 3, .HS = 128, .HV = 128}) +
                    H * hs + 2 * 3 * hs + d);
    AttnDims plain = lrkv(M128, 46);
    CHECK_COUNT("lrkv", lrkv(with, 46), count("lrkv", &plain) + H * hs + 2 * hs + d);
    plain = mla(M128, 128, 64);
    CHECK_COUNT("mla", mla(with, 128, 64), count("mla", &plain) + H * (hs + 64) + 2 * H * hs + d);
}

// Attention plus a 4d MLP of two matrices over all layers, in millions, as lrkv.md section 2 prints
// it.
static void whole_models_have_the_published_sizes(TestCtx *t) {
    static const struct {
        const char *name;
        bool large;
        int NKV, RKV, HR, R;
        double millions;
    } row[] = {{"mha", false, 6, 0, 0, 0, 84.9},     {"gqa", false, 3, 0, 0, 0, 77.9},
               {"mqa", false, 1, 0, 0, 0, 73.1},     {"mla", false, 6, 128, 0, 0, 74.3},
               {"mla", false, 6, 128, 64, 0, 78.45}, {"lrkv", false, 6, 0, 0, 46, 79.1},
               {"lrkv", false, 6, 0, 0, 64, 81.4},   {"mha", true, 18, 0, 0, 0, 2293},
               {"gqa", true, 6, 0, 0, 0, 2038},      {"mqa", true, 1, 0, 0, 0, 1932},
               {"mla", true, 18, 384, 0, 0, 2007},   {"mla", true, 18, 384, 64, 0, 2107},
               {"lrkv", true, 18, 0, 0, 55, 2106},   {"lrkv", true, 18, 0, 0, 64, 2134}};
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        AttnDims d = row[i].large ? B25 : M128;
        d.NKV = row[i].NKV, d.RKV = row[i].RKV, d.HR = row[i].HR, d.R = row[i].R;
        double layers = row[i].large ? 36 : 12, mlp = 8.0 * d.C * d.C;
        double millions = layers * ((double)count(row[i].name, &d) + mlp) / 1e6;
        CHECK_MSG(t, fabs(millions - row[i].millions) <= (row[i].large ? 0.6 : 0.06),
                  "%s: %.3f M, published %.2f M", row[i].name, millions, row[i].millions);
    }
}

static void check_cache(TestCtx *t, const char *name, AttnDims d, size_t values) {
    size_t n = attention_cache_values(attention_find(name), &d);
    CHECK_MSG(t, n == values, "%s caches %zu values a token, expected %zu", name, n, values);
}

static void caches_hold_the_published_values(TestCtx *t) {
    check_cache(t, "mha", M128, 1536);
    check_cache(t, "mha", B25, 4608);
    check_cache(t, "gqa", gqa(M128, 3), 768);
    check_cache(t, "gqa", gqa(B25, 6), 1536);
    check_cache(t, "mqa", gqa(M128, 1), 256);
    check_cache(t, "mla", mla(M128, 128, 0), 128);
    check_cache(t, "mla", mla(B25, 384, 0), 384);
    check_cache(t, "mla", mla(M128, 128, 64), 192);
    check_cache(t, "mla", mla(B25, 384, 64), 448);
    check_cache(t, "lrkv", lrkv(M128, 46), 808);
    check_cache(t, "lrkv", lrkv(B25, 55), 2236);
    check_cache(t, "lrkv", lrkv(M128, 64), 1024);
    check_cache(t, "lrkv", lrkv(B25, 16), 832);
    check_cache(t, "lrkv", lrkv(M128, 128), 1792);  // more than MHA's 1536
    check_cache(t, "lrkv", lrkv(M128, 0), 256);
}

// The cache of a length takes no more than its values, but for latents rounded up to a block.
static void cache_rows_are_as_long_as_asked(TestCtx *t) {
    AttnDims d = lrkv(M128, 46);
    d.Tmax = 100;
    TensorSpec rows[ATTN_MAX_TENSORS] = {{0}};
    int n = attention_find("lrkv")->cache(rows, &d);
    CHECK(t, n == 4);
    CHECK(t, rows[0].dim[0] == 100 && rows[1].dim[0] == 100);
    CHECK(t, rows[2].dim[0] == 128 && rows[2].dim[1] == 6 * 46 && rows[3].dim[0] == 128);
}

// |U_h B_h^T| / |Ws| over the heads, from the initial values that the rows ask for.
static double residual_ratio(const AttnDims *d, const char *ws_name, const char *u_name,
                             const char *b_name) {
    TensorTable t = {.elem_size = 4};
    TensorSpec rows[ATTN_MAX_TENSORS] = {{0}};
    tensor_table_add(&t, "h.0.attn.", 0, rows, attention_find("lrkv")->params(rows, d));
    float *value[3];
    const char *const names[3] = {ws_name, u_name, b_name};
    for (int i = 0; i < 3; i++) {
        const Tensor *x = &t.tensor[tensor_find(&t, names[i])];
        value[i] = mem_alloc(spec_logical(&x->spec), sizeof(float));
        tensor_init(value[i], x, 1);
    }
    size_t C = (size_t)d->C, HS = (size_t)d->HS, R = (size_t)d->R;
    double shared = 0, mean = 0;
    for (size_t i = 0; i < HS * C; i++)
        shared += (double)value[0][i] * (double)value[0][i];
    for (size_t h = 0; h < (size_t)d->NH; h++) {
        double sum = 0;
        for (size_t i = 0; i < HS * C; i++) {
            double x = 0;
            for (size_t r = 0; r < R; r++)
                x += (double)value[2][(h * HS + i / C) * R + r] *
                     (double)value[1][(h * R + r) * C + i % C];
            sum += x * x;
        }
        mean += sqrt(sum / shared) / d->NH;
    }
    for (int i = 0; i < 3; i++)
        mem_free(value[i]);
    tensor_table_free(&t);
    return mean;
}

static void residuals_start_at_a_tenth_of_the_shared_part(TestCtx *t) {
    static const int ranks[] = {8, 16, 46, 64, 128};
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        AttnDims d = lrkv(M128, ranks[i]);
        d.C = 192;  // the ratio does not depend on it
        double k = residual_ratio(&d, "h.0.attn.ws_k", "h.0.attn.u_k", "h.0.attn.b_k");
        double v = residual_ratio(&d, "h.0.attn.ws_v", "h.0.attn.u_v", "h.0.attn.b_v");
        CHECK_MSG(t, fabs(k - 0.1) <= 0.01 && fabs(v - 0.1) <= 0.01, "rank %d: %.4f, %.4f",
                  ranks[i], k, v);
    }
}

static void check_refused(TestCtx *t, const char *name, AttnDims d, const char *words) {
    const char *why = attention_find(name)->check(&d);
    CHECK_MSG(t, why && strstr(why, words), "%s: expected a sentence with '%s', found '%s'", name,
              words, why ? why : "none");
}

static void sizes_that_do_not_work_get_a_sentence(TestCtx *t) {
    check_refused(t, "mha", gqa(M128, 3), "as many key/value heads");
    check_refused(t, "mqa", gqa(M128, 3), "one key/value head");
    check_refused(t, "gqa", gqa(M128, 4), "must divide");
    check_refused(t, "gqa", gqa(M128, 0), "must divide");
    check_refused(t, "gqa", gqa(M128, -6), "must divide");
    check_refused(t, "lrkv", lrkv(M128, -1), "rank");
    check_refused(t, "lrkv", lrkv(M128, 129), "rank");
    check_refused(t, "mla", mla(M128, 0, 0), "kv_lora_rank");
    check_refused(t, "mla", mla(M128, 128, 63), "even");
    check_refused(t, "mla", mla(M128, 128, -2), "even");
    AttnDims d = mla(M128, 128, 64);
    d.position = POSITION_NONE;
    check_refused(t, "mla", d, "rope");
    d = M128;
    d.HV = 64;
    check_refused(t, "mha", d, "same head size");
    check_refused(t, "lrkv", lrkv(d, 8), "same head size");
}

static void sizes_that_work_get_none(TestCtx *t) {
    AttnDims d = M128;
    CHECK(t, !attention_find("mha")->check(&d));
    d = gqa(M128, 1);
    CHECK(t, !attention_find("mqa")->check(&d) && !attention_find("gqa")->check(&d));
    d = lrkv(M128, 128);
    CHECK(t, !attention_find("lrkv")->check(&d));
    d = mla(M128, 1000, 64), d.HV = 72, d.RQ = 3;
    CHECK(t, !attention_find("mla")->check(&d));
    CHECK(t, !attention_find("swa") && !attention_find(""));
}

TEST_MAIN({"parameters_are_counted_by_the_formulas", parameters_are_counted_by_the_formulas},
          {"biases_are_counted_by_the_formulas", biases_are_counted_by_the_formulas},
          {"whole_models_have_the_published_sizes", whole_models_have_the_published_sizes},
          {"caches_hold_the_published_values", caches_hold_the_published_values},
          {"cache_rows_are_as_long_as_asked", cache_rows_are_as_long_as_asked},
          {"residuals_start_at_a_tenth_of_the_shared_part",
           residuals_start_at_a_tenth_of_the_shared_part},
          {"sizes_that_do_not_work_get_a_sentence", sizes_that_do_not_work_get_a_sentence},
          {"sizes_that_work_get_none", sizes_that_work_get_none})
