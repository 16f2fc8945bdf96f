// test_attention.c - what must hold for every attention variant under every position mode, norm and
// bias: it is the function of its formulas, its gradients are that function's, the past does not
// see the future, generation through the cache is the same function, and repeating changes no bit.
// A new row in attention_table is tested as soon as it has dims here; without, a test fails.
#include <math.h>
#include <string.h>

#include "test/arrays.h"
#include "test/attn_harness.h"

typedef struct Variant {
    const char *label, *name;
    AttnDims d;
} Variant;

#define SMALL .C = 12, .NH = 4, .HS = 4, .HV = 4, .residual_ratio = 0.5f, .eps = 1e-6f
static const Variant variants[] = {
    {"mha", "mha", {SMALL, .NKV = 4}},
    {"mqa", "mqa", {SMALL, .NKV = 1}},
    {"gqa", "gqa", {SMALL, .NKV = 2}},
    {"mla", "mla", {SMALL, .RKV = 7}},
    {"mla, query latent", "mla", {SMALL, .RKV = 9, .RQ = 5}},
    {"mla, decoupled",
     "mla",
     {.C = 12, .NH = 3, .HS = 4, .HV = 5, .eps = 1e-6f, .RKV = 7, .HR = 2}},
    {"mla, decoupled, query latent", "mla", {SMALL, .RKV = 6, .RQ = 10, .HR = 4}},
    {"lrkv", "lrkv", {SMALL, .R = 3}},
    {"lrkv, merged", "lrkv", {SMALL, .R = 3, .path = PATH_MERGED}},
    {"lrkv, rank 0", "lrkv", {SMALL}},
};
enum { N_VARIANTS = sizeof variants / sizeof variants[0] };

typedef struct Setting {
    const char *label;
    Position position;
    bool qk_norm, bias;
} Setting;

static const Setting settings[] = {
    {"rope, norm", POSITION_ROPE, true, false},      {"bias", POSITION_LEARNED, false, true},
    {"rope", POSITION_ROPE, false, false},           {"norm", POSITION_NONE, true, false},
    {"rope, norm, bias", POSITION_ROPE, true, true},
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

// The variant under the setting, or NULL where they don't go together.
static AttnHarness *layer_new(const Variant *v, const Setting *s, int B, int T, ElemType cache) {
    AttnDims d = v->d;
    if (d.HR && s->position != POSITION_ROPE) return NULL;
    d.B = B, d.T = T, d.Tmax = T;
    d.position = s->position, d.qk_norm = s->qk_norm, d.bias = s->bias;
    d.compute = TYPE_F32, d.cache_type = cache;
    return harness_new(ops_cpu(), v->name, d, 1);
}

static size_t activations(const AttnHarness *h) {
    return (size_t)h->d.B * (size_t)h->d.T * (size_t)h->d.C;
}

// Every variant under every setting. One thread: the layers are too small to share.
typedef void Property(TestCtx *t, AttnHarness *h);
static void for_all(TestCtx *t, Property *holds, int B, int T) {
    set_threads(1);
    for (int v = 0; v < N_VARIANTS; v++) {
        for (int s = 0; s < N_SETTINGS; s++) {
            AttnHarness *h = layer_new(&variants[v], &settings[s], B, T, TYPE_F32);
            if (!h) continue;
            int before = t->failures;
            holds(t, h);
            if (t->failures > before) printf("  (%s; %s)\n", variants[v].label, settings[s].label);
            harness_free(h);
        }
    }
    set_threads(0);
}

static void every_variant_of_the_table_is_tested(TestCtx *t) {
    for (int i = 0; attention_table[i]; i++) {
        bool found = false;
        for (int v = 0; v < N_VARIANTS; v++)
            found |= strcmp(variants[v].name, attention_table[i]->name) == 0;
        CHECK_MSG(t, found, "%s has no dims in this file", attention_table[i]->name);
    }
}

// --- the function and its gradients
// The reference's parameters and input in double; the loss is dout . out.
typedef struct Reference {
    const AttnHarness *h;
    double *value[ATTN_MAX_TENSORS], *x, *dout, *out;
} Reference;

static Reference reference_new(const AttnHarness *h, const float *x, const float *dout) {
    Reference r = {.h = h, .x = doubles_of(x, activations(h))};
    r.out = doubles_new(activations(h));
    r.dout = doubles_of(dout, activations(h));
    for (int i = 0; i < h->params.n; i++)
        r.value[i] = doubles_of(h->value[i], harness_size(h, i));
    return r;
}

static void reference_free(Reference *r) {
    for (int i = 0; i < r->h->params.n; i++)
        mem_free(r->value[i]);
    mem_free(r->x), mem_free(r->dout), mem_free(r->out);
}

static double reference_loss(const Reference *r) {
    double sum = 0;
    ref_attention_layer(r->out, r->x, r->value, r->h);
    for (size_t i = 0; i < activations(r->h); i++)
        sum += r->dout[i] * r->out[i];
    return sum;
}

// The derivative of the reference's loss along each element of p (n), which the reference reads.
static double *differences(const Reference *r, double *p, size_t n) {
    double *g = doubles_new(n), step = 1e-5;
    for (size_t i = 0; i < n; i++) {
        double kept = p[i];
        p[i] = kept + step;
        double up = reference_loss(r);
        p[i] = kept - step;
        g[i] = (up - reference_loss(r)) / (2 * step);
        p[i] = kept;
    }
    return g;
}

static void forward_is_the_reference(TestCtx *t, AttnHarness *h) {
    size_t n = activations(h);
    float *x = floats_noise(n, 3, 1), *out = floats_new(n);
    Reference r = reference_new(h, x, x);
    harness_forward(h, out, x);
    reference_loss(&r);
    CHECK_CLOSE_F64(t, out, r.out, .what = "out", .n = n, .rel_tol = 1e-5);
    reference_free(&r);
    floats_free(t, x), floats_free(t, out);
}

static void check_gradient(TestCtx *t, const char *what, const float *g, const double *expected,
                           size_t n) {
    double largest = 0;
    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(expected[i]));
    // The bias of a key that no rotation or norm follows moves all scores of a query alike.
    bool must_move = strcmp(what, "bk") != 0 && strcmp(what, "bs_k") != 0;
    CHECK_MSG(t, !must_move || largest > 1e-3, "%s: the gradient is zero, the test is empty", what);
    CHECK_CLOSE_F64(t, g, expected, .what = what, .n = n, .rel_tol = 2e-5, .abs_tol = 2e-6);
}

static void gradients_are_the_references(TestCtx *t, AttnHarness *h) {
    size_t n = activations(h);
    float *x = floats_noise(n, 3, 1), *dout = floats_noise(n, 4, 1), *out = floats_new(n);
    float *dx = floats_new(n);
    Reference r = reference_new(h, x, dout);
    harness_forward(h, out, x);
    harness_backward(h, dx, dout, x);
    double *expected = differences(&r, r.x, n);
    check_gradient(t, "x", dx, expected, n);
    mem_free(expected);
    for (int i = 0; i < h->params.n; i++) {
        float *g = harness_grad(h, i);
        expected = differences(&r, r.value[i], harness_size(h, i));
        check_gradient(t, h->params.tensor[i].name, g, expected, harness_size(h, i));
        mem_free(expected), mem_free(g);
    }
    reference_free(&r);
    floats_free(t, x), floats_free(t, dout), floats_free(t, out), floats_free(t, dx);
}

// At lengths of several tiles: along one random direction through x and all weights at once.
static void gradient_along_a_direction_is_the_references(TestCtx *t, AttnHarness *h) {
    size_t n = activations(h);
    float *x = floats_noise(n, 3, 1), *dout = floats_noise(n, 4, 1), *out = floats_new(n);
    float *dx = floats_new(n), *along = floats_noise(n, 5, 1);
    Reference up = reference_new(h, x, dout), down = reference_new(h, x, dout);
    harness_forward(h, out, x);
    harness_backward(h, dx, dout, x);
    double step = 1e-5, slope = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        up.x[i] += step * (double)along[i], down.x[i] -= step * (double)along[i];
        slope += (double)along[i] * (double)dx[i], size += fabs((double)along[i] * (double)dx[i]);
    }
    for (int k = 0; k < h->params.n; k++) {
        float *g = harness_grad(h, k), *way = floats_noise(harness_size(h, k), 6 + (uint64_t)k, 1);
        for (size_t i = 0; i < harness_size(h, k); i++) {
            up.value[k][i] += step * (double)way[i], down.value[k][i] -= step * (double)way[i];
            slope += (double)way[i] * (double)g[i], size += fabs((double)way[i] * (double)g[i]);
        }
        mem_free(g), floats_free(t, way);
    }
    double expected = (reference_loss(&up) - reference_loss(&down)) / (2 * step);
    CHECK_MSG(t, fabs(slope - expected) <= 2e-6 * size, "slope %.9g, expected %.9g", slope,
              expected);
    reference_free(&up), reference_free(&down);
    floats_free(t, x), floats_free(t, dout), floats_free(t, out), floats_free(t, dx),
        floats_free(t, along);
}

static void every_forward_agrees_with_the_formulas(TestCtx *t) {
    for_all(t, forward_is_the_reference, 2, 5);
}
static void every_forward_agrees_with_the_formulas_over_several_tiles(TestCtx *t) {
    for_all(t, forward_is_the_reference, 1, 130);
}
static void every_gradient_agrees_with_differences(TestCtx *t) {
    for_all(t, gradients_are_the_references, 2, 4);
}
static void every_gradient_agrees_with_differences_over_several_tiles(TestCtx *t) {
    for_all(t, gradient_along_a_direction_is_the_references, 1, 70);
}

// --- repetition and causality
static void runs_repeat(TestCtx *t, AttnHarness *h) {
    size_t n = activations(h);
    float *x = floats_noise(n, 3, 1), *dout = floats_noise(n, 4, 1), *grad[ATTN_MAX_TENSORS];
    float *out = floats_new(n), *again = floats_new(n), *dx = floats_new(n),
          *dx_again = floats_new(n);
    harness_forward(h, out, x);
    harness_backward(h, dx, dout, x);
    for (int i = 0; i < h->params.n; i++)
        grad[i] = harness_grad(h, i);
    set_threads(3);
    harness_forward(h, again, x);
    harness_forward(h, again, x);
    harness_backward(h, dx_again, dout, x);
    set_threads(1);
    CHECK_SAME_BITS(t, out, again, n * sizeof(float));
    CHECK_SAME_BITS(t, dx, dx_again, n * sizeof(float));
    for (int i = 0; i < h->params.n; i++) {
        float *g = harness_grad(h, i);
        CHECK_SAME_BITS(t, grad[i], g, harness_size(h, i) * sizeof(float));
        mem_free(g), mem_free(grad[i]);
    }
    floats_free(t, x), floats_free(t, dout), floats_free(t, out), floats_free(t, again);
    floats_free(t, dx), floats_free(t, dx_again);
}

static void past_ignores_the_future(TestCtx *t, AttnHarness *h) {
    size_t n = activations(h), C = (size_t)h->d.C, cut = 66 * C;
    float *x = floats_noise(n, 3, 1), *out = floats_new(n), *other = floats_new(n);
    harness_forward(h, out, x);
    test_noise(x + cut, n - cut, 9, 3);
    harness_forward(h, other, x);
    CHECK_SAME_BITS(t, out, other, cut * sizeof(float));
    CHECK(t, memcmp(out + cut, other + cut, C * sizeof(float)) != 0);
    floats_free(t, x), floats_free(t, out), floats_free(t, other);
}

static void every_variant_repeats_bit_for_bit(TestCtx *t) {
    for_all(t, runs_repeat, 2, 70);
}
static void every_past_ignores_the_future(TestCtx *t) {
    for_all(t, past_ignores_the_future, 1, 80);
}

// --- the cache
// Appends tokens [first, first + n) of every row and compares with the forward pass.
static void append_and_compare(TestCtx *t, AttnHarness *h, const float *x, const float *expected,
                               int first, int n, double tol) {
    size_t C = (size_t)h->d.C, B = (size_t)h->d.B, chunk = (size_t)n * C;
    int *pos = mem_alloc(B, sizeof(int)), *n_new = mem_alloc(B, sizeof(int));
    float *part = floats_new(B * chunk), *out = floats_new(B * chunk);
    for (size_t b = 0; b < B; b++) {
        pos[b] = first, n_new[b] = n;
        memcpy(part + b * chunk, x + (b * (size_t)h->d.T + (size_t)first) * C,
               chunk * sizeof(float));
    }
    harness_extend(h, out, part, n, pos, n_new);
    for (size_t b = 0; b < B; b++)
        CHECK_CLOSE(t, out + b * chunk, expected + (b * (size_t)h->d.T + (size_t)first) * C,
                    .what = "token", .n = chunk, .rel_tol = tol, .abs_tol = tol);
    mem_free(pos), mem_free(n_new);
    floats_free(t, part), floats_free(t, out);
}

// Prefill of `prompt` tokens in chunks, then one by one.
static void check_generation(TestCtx *t, AttnHarness *h, int prompt, int chunk, double tol) {
    size_t n = activations(h);
    float *x = floats_noise(n, 3, 1), *out = floats_new(n);
    harness_forward(h, out, x);
    harness_clear_cache(h);
    for (int first = 0; first < prompt; first += chunk)
        append_and_compare(t, h, x, out, first, min_int(chunk, prompt - first), tol);
    for (int first = prompt; first < h->d.T; first++)
        append_and_compare(t, h, x, out, first, 1, tol);
    floats_free(t, x), floats_free(t, out);
}

static void decoding_is_forward(TestCtx *t, AttnHarness *h) {
    check_generation(t, h, 0, 1, 1e-5);
}
static void chunked_prefill_is_forward(TestCtx *t, AttnHarness *h) {
    check_generation(t, h, h->d.T, h->d.T, 1e-5);
    check_generation(t, h, h->d.T, 64, 1e-5);
    check_generation(t, h, h->d.T - 1, 37, 1e-5);
    check_generation(t, h, h->d.T / 2, 3, 1e-5);
}

// All tokens through the cache, `chunk` at a time.
static float *generated(AttnHarness *h, const float *x, int chunk) {
    size_t C = (size_t)h->d.C;
    float *out = floats_new(activations(h));
    harness_clear_cache(h);
    for (int first = 0; first < h->d.T; first += chunk) {
        int n = min_int(chunk, h->d.T - first);
        harness_extend(h, out + (size_t)first * C, x + (size_t)first * C, n, &first, &n);
    }
    return out;
}

// On the CPU sums keep their order however the tokens are cut.
static void chunks_change_no_bit(TestCtx *t, AttnHarness *h) {
    float *x = floats_noise(activations(h), 3, 1), *whole = generated(h, x, h->d.T);
    static const int chunks[] = {1, 7, 64};
    for (int i = 0; i < 3; i++) {
        float *out = generated(h, x, chunks[i]);
        CHECK_SAME_BITS(t, out, whole, activations(h) * sizeof(float));
        floats_free(t, out);
    }
    floats_free(t, x), floats_free(t, whole);
}

// Rows at different positions, some without new tokens, each as if it were alone.
static void ragged_rows_are_forward(TestCtx *t, AttnHarness *h) {
    size_t n = activations(h), C = (size_t)h->d.C, row = (size_t)h->d.T * C;
    static const int steps[][3] = {{40, 0, 7}, {1, 66, 0}, {0, 1, 1}, {29, 3, 60}};
    float *x = floats_noise(n, 3, 1), *out = floats_new(n);
    int pos[3] = {0, 0, 0};
    harness_forward(h, out, x);
    for (int s = 0; s < 4; s++) {
        int T = 66;
        float *part = floats_new(3 * (size_t)T * C), *got = floats_new(3 * (size_t)T * C);
        for (size_t b = 0; b < 3; b++)
            memcpy(part + b * (size_t)T * C, x + b * row + (size_t)pos[b] * C,
                   min_size((size_t)T, (size_t)(h->d.T - pos[b])) * C * sizeof(float));
        harness_extend(h, got, part, T, pos, steps[s]);
        for (size_t b = 0; b < 3; b++) {
            CHECK_CLOSE(t, got + b * (size_t)T * C, out + b * row + (size_t)pos[b] * C,
                        .what = "row", .n = (size_t)steps[s][b] * C, .rel_tol = 1e-5,
                        .abs_tol = 1e-5);
            pos[b] += steps[s][b];
        }
        floats_free(t, part), floats_free(t, got);
    }
    floats_free(t, x), floats_free(t, out);
}

static void every_decoding_is_its_forward_token_by_token(TestCtx *t) {
    for_all(t, decoding_is_forward, 1, 130);
}
static void every_chunked_prefill_is_its_forward(TestCtx *t) {
    for_all(t, chunked_prefill_is_forward, 2, 75);
}
static void every_ragged_batch_is_its_forward(TestCtx *t) {
    for_all(t, ragged_rows_are_forward, 3, 75);
}

static void every_generation_has_the_same_bits_for_any_chunks(TestCtx *t) {
    for_all(t, chunks_change_no_bit, 1, 70);
}

// A bf16 cache keeps 8 bits of each value.
static void every_bf16_cache_is_near_its_forward(TestCtx *t) {
    set_threads(1);
    for (int v = 0; v < N_VARIANTS; v++) {
        AttnHarness *h = layer_new(&variants[v], &settings[0], 2, 70, TYPE_BF16);
        check_generation(t, h, 66, 30, 0.02);
        harness_free(h);
    }
    set_threads(0);
}

TEST_MAIN({"every_variant_of_the_table_is_tested", every_variant_of_the_table_is_tested},
          {"every_forward_agrees_with_the_formulas", every_forward_agrees_with_the_formulas},
          {"every_forward_agrees_with_the_formulas_over_several_tiles",
           every_forward_agrees_with_the_formulas_over_several_tiles},
          {"every_gradient_agrees_with_differences", every_gradient_agrees_with_differences},
          {"every_gradient_agrees_with_differences_over_several_tiles",
           every_gradient_agrees_with_differences_over_several_tiles},
          {"every_variant_repeats_bit_for_bit", every_variant_repeats_bit_for_bit},
          {"every_past_ignores_the_future", every_past_ignores_the_future},
          {"every_decoding_is_its_forward_token_by_token",
           every_decoding_is_its_forward_token_by_token},
          {"every_chunked_prefill_is_its_forward", every_chunked_prefill_is_its_forward},
          {"every_generation_has_the_same_bits_for_any_chunks",
           every_generation_has_the_same_bits_for_any_chunks},
          {"every_ragged_batch_is_its_forward", every_ragged_batch_is_its_forward},
          {"every_bf16_cache_is_near_its_forward", every_bf16_cache_is_near_its_forward})
