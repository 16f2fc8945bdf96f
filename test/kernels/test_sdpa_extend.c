// test_sdpa_extend.c - attention over a cache, plain and low-rank, every instruction set against
// the double reference. The cache is NaN behind every sequence's end.
#include <math.h>
#include <string.h>

#include "test/arrays.h"
#include "test/ref_attention.h"

enum { MAX_B = 4 };

typedef struct Case {
    int B, T, Tmax, NH, NKV, HS, HV;
    ElemType type;
    bool prefix;  // v is a prefix of k
    int pos[MAX_B], n_new[MAX_B];
} Case;

// fp32 values that the cache type can hold, and the cache itself.
typedef struct Rows {
    float *value;
    void *cache;
} Rows;

static Rows rows_new(size_t n, uint64_t seed, ElemType type) {
    Rows r = {.value = floats_noise(n, seed, 1.2f)};
    uint16_t *half = mem_alloc(n, sizeof *half);
    for (size_t i = 0; i < n; i++) {
        half[i] = bf16_from_f32(r.value[i]);
        if (type == TYPE_BF16) r.value[i] = bf16_to_f32(half[i]);
    }
    if (type == TYPE_F32) mem_free(half);
    r.cache = type == TYPE_F32 ? (void *)r.value : half;
    return r;
}

static void rows_free(TestCtx *t, Rows *r) {
    if (r->cache != r->value) mem_free(r->cache);
    floats_free(t, r->value);
}

static void poison(Rows *r, ElemType type, size_t from, size_t to) {
    for (size_t i = from; i < to; i++) {
        if (type == TYPE_F32)
            r->value[i] = NAN;
        else
            ((uint16_t *)r->cache)[i] = 0x7FC1;
    }
}

typedef struct Data {
    Case c;
    SdpaArgs a;
    size_t n_q, n_o;
    float *q;
    Rows k, v;
    double *expected;
} Data;

static SdpaArgs args_of(const Case *c) {
    SdpaArgs a = {.B = c->B, .Tq = c->T, .Tk = c->Tmax, .NH = c->NH, .NKV = c->NKV, .HS = c->HS};
    a.HV = c->HV, a.kv_type = c->type;
    a.q_head = (size_t)c->HS, a.k_head = (size_t)c->HS, a.v_head = (size_t)c->HV;
    a.o_head = (size_t)c->HV + 1;
    a.q_token = a.q_head * (size_t)c->NH + 3, a.k_token = a.k_head * (size_t)c->NKV;
    a.v_token = a.v_head * (size_t)c->NKV, a.o_token = a.o_head * (size_t)c->NH;
    if (c->prefix) a.v_token = a.k_token, a.v_head = a.k_head;
    a.q_batch = (size_t)c->T * a.q_token, a.o_batch = (size_t)c->T * a.o_token;
    a.k_batch = (size_t)c->Tmax * a.k_token, a.v_batch = (size_t)c->Tmax * a.v_token;
    a.scale = 1.9f / sqrtf((float)c->HS);
    a.pos = c->pos, a.n_new = c->n_new;
    for (int b = 0; b < c->B; b++)
        a.max_pos = max_int(a.max_pos, c->pos[b] + c->n_new[b]);
    return a;
}

// expected (B, T, NH, HV)
static void data_expect(Data *d) {
    const Case *c = &d->c;
    RefSdpa r = {.B = c->B, .Tq = c->T, .Tk = c->Tmax, .NH = c->NH, .NKV = c->NKV, .HS = c->HS};
    r.HV = c->HV, r.scale = (double)d->a.scale, r.pos = c->pos;
    size_t keys = (size_t)(c->B * c->Tmax * c->NKV), queries = (size_t)(c->B * c->T * c->NH);
    double *q = doubles_new(queries * (size_t)c->HS), *v = doubles_new(keys * (size_t)c->HV);
    double *k = doubles_of(d->k.value, keys * (size_t)c->HS);
    for (size_t n = 0; n < (size_t)(c->B * c->T); n++) {
        for (size_t i = 0; i < (size_t)(c->NH * c->HS); i++)
            q[n * (size_t)(c->NH * c->HS) + i] = (double)d->q[n * d->a.q_token + i];
    }
    for (size_t n = 0; n < keys; n++) {
        for (size_t i = 0; i < (size_t)c->HV; i++)
            v[n * (size_t)c->HV + i] =
                c->prefix ? k[n * (size_t)c->HS + i] : (double)d->v.value[n * (size_t)c->HV + i];
    }
    // Only queries within the cache can be asked of the reference.
    d->expected = doubles_new(queries * (size_t)c->HV);
    for (int b = 0; b < c->B; b++) {
        RefSdpa one = r;
        one.B = 1, one.pos = c->pos + b;
        one.Tq = min_int(c->T, c->Tmax - c->pos[b]);
        size_t at = (size_t)b;
        size_t tn = (size_t)(c->T * c->NH), kn = (size_t)(c->Tmax * c->NKV);
        ref_sdpa_forward(d->expected + at * tn * (size_t)c->HV, NULL, q + at * tn * (size_t)c->HS,
                         k + at * kn * (size_t)c->HS, v + at * kn * (size_t)c->HV, &one);
    }
    mem_free(q), mem_free(k), mem_free(v);
}

static Data *data_new(Case c) {
    Data *d = mem_alloc(1, sizeof *d);
    d->c = c;
    d->a = args_of(&d->c);
    d->n_q = (size_t)c.B * d->a.q_batch, d->n_o = (size_t)c.B * d->a.o_batch;
    d->q = floats_noise(d->n_q, 1, 1.2f);
    d->k = rows_new((size_t)c.B * d->a.k_batch, 2, c.type);
    d->v = rows_new((size_t)c.B * d->a.v_batch, 3, c.type);
    data_expect(d);
    for (int b = 0; b < c.B; b++) {
        size_t end = (size_t)(c.pos[b] + c.n_new[b]), row = (size_t)b;
        poison(&d->k, c.type, row * d->a.k_batch + end * d->a.k_token, (row + 1) * d->a.k_batch);
        poison(&d->v, c.type, row * d->a.v_batch + end * d->a.v_token, (row + 1) * d->a.v_batch);
    }
    return d;
}

static void data_free(TestCtx *t, Data *d) {
    floats_free(t, d->q);
    rows_free(t, &d->k);
    rows_free(t, &d->v);
    mem_free(d->expected);
    mem_free(d);
}

static float *run(const Ops *ops, const Data *d) {
    float *out = floats_new(d->n_o);
    ops->sdpa_extend(fx(out), fx(d->q), d->k.cache, d->c.prefix ? d->k.cache : d->v.cache, &d->a);
    return out;
}

static void compare(TestCtx *t, const Data *d, const float *out, double tol) {
    const Case *c = &d->c;
    size_t HV = (size_t)c->HV;
    for (int b = 0; b < c->B; b++) {
        for (int i = 0; i < c->T * c->NH; i++) {
            int token = i / c->NH;
            const float *x = out + (size_t)b * d->a.o_batch + (size_t)token * d->a.o_token +
                             (size_t)(i % c->NH) * d->a.o_head;
            const double *y = d->expected + ((size_t)b * (size_t)(c->T * c->NH) + (size_t)i) * HV;
            if (token < c->n_new[b]) {
                CHECK_CLOSE_F64(t, x, y, .what = "out", .n = HV, .rel_tol = tol, .abs_tol = tol);
                CHECK(t, isnan(x[HV]));  // between the heads
            } else {
                CHECK_MSG(t, isnan(x[0]), "token %d of row %d was written", token, b);
            }
        }
    }
}

static void check_case(TestCtx *t, Case c) {
    Data *d = data_new(c);
    const Ops *ops;
    FOR_EACH_SET(ops) {
        set_threads(1);
        float *one = run(ops, d);
        compare(t, d, one, 3e-6);
        for (int threads = 2; threads <= 7; threads += 5) {
            set_threads(threads);
            float *other = run(ops, d);
            CHECK_SAME_BITS(t, one, other, d->n_o * sizeof(float));
            floats_free(t, other);
        }
        floats_free(t, one);
    }
    set_threads(0);
    data_free(t, d);
}

static void extend_decodes_at_every_position(TestCtx *t) {
    static const int at[] = {0, 1, 2, 15, 62, 63, 64, 127, 128, 255, 256, 300, 700};
    for (size_t i = 0; i < sizeof at / sizeof at[0]; i++) {
        for (int type = 0; type < 2; type++)
            check_case(t, (Case){.B = 1,
                                 .T = 1,
                                 .Tmax = at[i] + 3,
                                 .NH = 6,
                                 .NKV = 2,
                                 .HS = 16,
                                 .HV = 16,
                                 .type = type ? TYPE_BF16 : TYPE_F32,
                                 .pos = {at[i]},
                                 .n_new = {1}});
    }
}

static void extend_takes_rows_at_different_positions(TestCtx *t) {
    Case c = {.B = 4,
              .T = 70,
              .Tmax = 400,
              .NH = 4,
              .NKV = 2,
              .HS = 24,
              .HV = 40,
              .type = TYPE_F32,
              .pos = {0, 300, 17, 63},
              .n_new = {70, 1, 0, 66}};
    check_case(t, c);
    c.type = TYPE_BF16;
    check_case(t, c);
    c.n_new[0] = c.n_new[1] = c.n_new[3] = 0;
    check_case(t, c);
}

static void extend_takes_every_group_and_head_size(TestCtx *t) {
    static const int sizes[][4] = {
        {1, 1, 8, 8}, {6, 6, 128, 128}, {6, 1, 64, 32}, {18, 1, 33, 7}, {3, 3, 192, 128}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        check_case(t, (Case){.B = 2,
                             .T = 5,
                             .Tmax = 90,
                             .NH = sizes[i][0],
                             .NKV = sizes[i][1],
                             .HS = sizes[i][2],
                             .HV = sizes[i][3],
                             .type = TYPE_BF16,
                             .pos = {64, 30},
                             .n_new = {5, 3}});
}

// Absorbed MLA: one wide key row whose head is the value.
static void extend_takes_values_that_are_a_prefix_of_keys(TestCtx *t) {
    Case c = {.B = 2,
              .T = 3,
              .Tmax = 300,
              .NH = 16,
              .NKV = 1,
              .HS = 96,
              .HV = 64,
              .type = TYPE_F32,
              .prefix = true,
              .pos = {290, 5},
              .n_new = {3, 3}};
    check_case(t, c);
    c.type = TYPE_BF16;
    check_case(t, c);
}

// A call for some tokens of one row of d, alone.
static float *run_part(const Ops *ops, const Data *d, int b, int first, int n) {
    float *out = floats_new((size_t)n * d->a.o_token);
    int pos = d->c.pos[b] + first, n_new = n;
    size_t size = d->c.type == TYPE_BF16 ? 2 : 4, row = (size_t)b;
    SdpaArgs a = d->a;
    a.B = 1, a.Tq = n, a.pos = &pos, a.n_new = &n_new, a.max_pos = pos + n;
    ops->sdpa_extend(fx(out), fx(d->q + row * a.q_batch + (size_t)first * a.q_token),
                     (const char *)d->k.cache + row * a.k_batch * size,
                     (const char *)d->v.cache + row * a.v_batch * size, &a);
    return out;
}

// The same bits whether tokens come one by one, in chunks or at once, alone or beside others.
static void extend_does_not_depend_on_chunks_or_neighbours(TestCtx *t) {
    Case c = {.B = 2,
              .T = 67,
              .Tmax = 340,
              .NH = 6,
              .NKV = 2,
              .HS = 40,
              .HV = 24,
              .type = TYPE_BF16,
              .pos = {230, 0},
              .n_new = {67, 67}};
    Data *d = data_new(c);
    const Ops *ops;
    FOR_EACH_SET(ops) {
        set_threads(2);
        float *whole = run(ops, d);
        set_threads(1);
        static const int chunks[] = {1, 3, 64};
        for (int b = 0; b < c.B; b++) {
            for (int i = 0; i < 3; i++) {
                for (int first = 0; first < c.T; first += chunks[i]) {
                    int n = min_int(chunks[i], c.T - first);
                    float *part = run_part(ops, d, b, first, n);
                    CHECK_SAME_BITS(t, part,
                                    whole + (size_t)b * d->a.o_batch + (size_t)first * d->a.o_token,
                                    (size_t)n * d->a.o_token * sizeof(float));
                    floats_free(t, part);
                }
            }
        }
        floats_free(t, whole);
    }
    set_threads(0);
    data_free(t, d);
}

// The first half of the tokens of a call see nothing of the second, also where that is NaN: with
// few rows, which read the values in place, and with many, which read panels.
static void extend_past_does_not_see_a_bad_future(TestCtx *t) {
    for (int i = 0; i < 4; i++) {
        Case c = {.B = 1,
                  .T = i < 2 ? 4 : 70,
                  .Tmax = 150,
                  .NH = i < 2 ? 1 : 4,
                  .NKV = 1,
                  .HS = 16,
                  .HV = 20,
                  .type = i % 2 ? TYPE_BF16 : TYPE_F32,
                  .pos = {50}};
        c.n_new[0] = c.T;
        Data *d = data_new(c);
        size_t half = (size_t)(c.pos[0] + c.T / 2), end = (size_t)(c.pos[0] + c.T);
        float *clean[8];
        int n = 0;
        const Ops *ops;
        FOR_EACH_SET(ops) clean[n++] = run(ops, d);
        poison(&d->k, c.type, half * d->a.k_token, end * d->a.k_token);
        poison(&d->v, c.type, half * d->a.v_token, end * d->a.v_token);
        n = 0;
        FOR_EACH_SET(ops) {
            float *out = run(ops, d), *was = clean[n++];
            size_t seen = (size_t)(c.T / 2) * d->a.o_token;
            CHECK_SAME_BITS(t, was, out, seen * sizeof(float));
            CHECK(t, isnan(out[seen]));
            floats_free(t, out);
            floats_free(t, was);
        }
        data_free(t, d);
    }
}

TEST_MAIN({"extend_decodes_at_every_position", extend_decodes_at_every_position},
          {"extend_takes_rows_at_different_positions", extend_takes_rows_at_different_positions},
          {"extend_takes_every_group_and_head_size", extend_takes_every_group_and_head_size},
          {"extend_takes_values_that_are_a_prefix_of_keys",
           extend_takes_values_that_are_a_prefix_of_keys},
          {"extend_past_does_not_see_a_bad_future", extend_past_does_not_see_a_bad_future},
          {"extend_does_not_depend_on_chunks_or_neighbours",
           extend_does_not_depend_on_chunks_or_neighbours})
