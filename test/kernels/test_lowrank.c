// test_lowrank.c - low-rank keys and values in training, every instruction set against the double
// reference: the expansion and its gradients.
#include <string.h>

#include "test/arrays.h"
#include "test/ref_attention.h"

// dst (rows, width) from src, rows ld apart.
static double *compact(const float *src, size_t rows, size_t width, size_t ld) {
    double *d = doubles_new(rows * width);
    for (size_t n = 0; n < rows; n++) {
        for (size_t i = 0; i < width; i++)
            d[n * width + i] = (double)src[n * ld + i];
    }
    return d;
}

typedef struct Train {
    int B, T, NH, HS, R;
    bool shared, rope, norm;
} Train;

typedef struct TrainData {
    LowRankArgs a;
    size_t rows, n_s, n_z, n_b, n_out;
    float *s, *z, *b, *dout, *rope;
    float *out, *rstd, *ds, *dz, *db, *dscratch;
} TrainData;

static TrainData train_new(const Train *c) {
    TrainData d = {.rows = (size_t)(c->B * c->T)};
    size_t HS = (size_t)c->HS, heads = (size_t)c->NH;
    LowRankArgs a = {.B = c->B, .T = c->T, .NH = c->NH, .HS = c->HS, .R = c->R, .eps = 1e-6f};
    a.ld_s = HS + 3, a.ld_z = heads * (size_t)c->R + 5, a.ld_out = heads * HS + 2;
    a.norm = c->norm;
    d.rope = ref_rope_table(c->T, c->HS, 1000);
    if (c->rope) a.rope = d.rope;
    d.a = a;
    d.n_s = d.rows * a.ld_s, d.n_z = d.rows * a.ld_z, d.n_out = d.rows * a.ld_out;
    d.n_b = heads * HS * (size_t)c->R;
    d.s = c->shared ? floats_noise(d.n_s, 1, 1) : NULL;
    d.z = floats_noise(d.n_z, 2, 1), d.b = floats_noise(d.n_b, 3, 1);
    d.dout = floats_noise(d.n_out, 4, 1);
    d.out = floats_new(d.n_out), d.rstd = floats_new(d.rows * heads);
    d.ds = floats_new(d.n_s), d.dz = floats_new(d.n_z), d.db = floats_noise(d.n_b, 5, 1);
    d.dscratch = floats_new(d.n_out);
    memcpy(d.dscratch, d.dout, d.n_out * sizeof(float));
    return d;
}

static void train_free(TestCtx *t, TrainData *d) {
    float *all[] = {d->s, d->z, d->b, d->dout, d->out, d->rstd, d->ds, d->dz, d->db, d->dscratch};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        floats_free(t, all[i]);
    mem_free(d->rope);
}

static void train_run(const Ops *ops, TrainData *d) {
    float *rstd = d->a.norm ? d->rstd : NULL;
    ops->lowrank_forward(fx(d->out), rstd, fx(d->s), fx(d->z), fx(d->b), &d->a);
    ops->lowrank_backward(d->s ? fx(d->ds) : NULL, fx(d->dz), d->db, fx(d->dscratch), fx(d->out),
                          rstd, fx(d->z), fx(d->b), &d->a);
}

static void check_rows(TestCtx *t, const char *what, const float *x, const double *y, size_t rows,
                       size_t width, size_t ld) {
    float *flat = floats_new(rows * width);
    for (size_t n = 0; n < rows; n++)
        memcpy(flat + n * width, x + n * ld, width * sizeof(float));
    CHECK_CLOSE_F64(t, flat, y, .what = what, .n = rows * width, .rel_tol = 2e-6);
    floats_free(t, flat);
}

static void train_compare(TestCtx *t, const Train *c, const TrainData *d) {
    size_t HS = (size_t)c->HS, heads = (size_t)c->NH, R = (size_t)c->R;
    RefLowRank a = {.B = c->B, .T = c->T, .NH = c->NH, .HS = c->HS, .R = c->R, .norm = c->norm};
    a.rope = d->a.rope, a.eps = d->a.eps;
    double *s = d->s ? compact(d->s, d->rows, HS, d->a.ld_s) : NULL;
    double *z = compact(d->z, d->rows, heads * R, d->a.ld_z), *b = doubles_of(d->b, d->n_b);
    double *dout = compact(d->dout, d->rows, heads * HS, d->a.ld_out);
    double *out = doubles_new(d->rows * heads * HS), *ds = doubles_new(d->rows * HS);
    double *dz = doubles_new(d->rows * heads * R), *db = doubles_new(d->n_b);
    ref_lowrank_forward(out, s, z, b, &a);
    ref_lowrank_backward(s ? ds : NULL, dz, db, dout, s, z, b, &a);
    float *start = floats_noise(d->n_b, 5, 1);
    for (size_t i = 0; i < d->n_b; i++)
        db[i] += (double)start[i];  // weight gradients accumulate
    floats_free(t, start);
    check_rows(t, "out", d->out, out, d->rows, heads * HS, d->a.ld_out);
    if (s) check_rows(t, "ds", d->ds, ds, d->rows, HS, d->a.ld_s);
    check_rows(t, "dz", d->dz, dz, d->rows, heads * R, d->a.ld_z);
    check_rows(t, "db", d->db, db, heads * HS, R, R);
    mem_free(s), mem_free(z), mem_free(b), mem_free(dout), mem_free(out), mem_free(ds),
        mem_free(dz), mem_free(db);
}

static void check_train(TestCtx *t, Train c) {
    const Ops *ops;
    FOR_EACH_SET(ops) {
        TrainData one = train_new(&c);
        set_threads(1);
        train_run(ops, &one);
        train_compare(t, &c, &one);
        for (int threads = 2; threads <= 3; threads++) {
            TrainData other = train_new(&c);
            set_threads(threads);
            train_run(ops, &other);
            CHECK_SAME_BITS(t, one.out, other.out, one.n_out * sizeof(float));
            CHECK_SAME_BITS(t, one.ds, other.ds, one.n_s * sizeof(float));
            CHECK_SAME_BITS(t, one.dz, other.dz, one.n_z * sizeof(float));
            CHECK_SAME_BITS(t, one.db, other.db, one.n_b * sizeof(float));
            train_free(t, &other);
        }
        train_free(t, &one);
    }
    set_threads(0);
}

static void lowrank_agrees_with_the_reference(TestCtx *t) {
    for (int bits = 0; bits < 8; bits++)
        check_train(t, (Train){.B = 2,
                               .T = 11,
                               .NH = 3,
                               .HS = 16,
                               .R = 8,
                               .shared = bits & 1,
                               .rope = bits & 2,
                               .norm = bits & 4});
}

static void lowrank_takes_the_ranks_of_the_paper(TestCtx *t) {
    static const int ranks[] = {16, 48, 56, 64, 128};
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++)
        check_train(t, (Train){.B = 1,
                               .T = 33,
                               .NH = 2,
                               .HS = 128,
                               .R = ranks[i],
                               .shared = true,
                               .rope = true,
                               .norm = true});
}

TEST_MAIN({"lowrank_agrees_with_the_reference", lowrank_agrees_with_the_reference},
          {"lowrank_takes_the_ranks_of_the_paper", lowrank_takes_the_ranks_of_the_paper})
