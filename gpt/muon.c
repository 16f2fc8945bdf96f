// muon.c - see muon.h.
#include "gpt/muon.h"

#include <math.h>

MuonGroup muon_group(const TensorSpec *s, const Config *c) {
    int units = s->blocks ? s->blocks : 1;
    if (c->optim.muon_unit == MUON_HEAD && s->heads) units = s->heads;
    double rows = (double)s->dim[0] / units, cols = s->dim[1];
    return (MuonGroup){.n = 1,
                       .units = units,
                       .rows = spec_rows(s) / units,
                       .cols = spec_cols(s),
                       .aspect = sqrt(fmax(1, rows / cols)),
                       .compute = (ElemType)c->optim.muon_compute};
}

static size_t small_side(const MuonGroup *g) {
    return (size_t)min_int(g->rows, g->cols);
}

size_t muon_scratch(const MuonGroup *g) {
    size_t count = (size_t)g->n * (size_t)g->units, small = small_side(g);
    return count * (2 * small * small + (size_t)g->rows * (size_t)g->cols);
}

bool muon_takes(const TensorSpec *s, const Config *c) {
    return c->optim.group[s->kind].optimizer == OPTIM_MUON;
}

// One learning rate and one aspect belong to a batch.
static bool go_together(const TensorSpec *a, const TensorSpec *b, const Config *c) {
    MuonGroup x = muon_group(a, c), y = muon_group(b, c);
    return a->kind == b->kind && x.units == y.units && x.rows == y.rows && x.cols == y.cols &&
           x.aspect == y.aspect;
}

static void add_batches(MuonBatches *out, int first, int count, MuonGroup g, const Ops *ops) {
    size_t outputs = (size_t)g.units * small_side(&g) * small_side(&g);
    size_t most = ops->busy_outputs > outputs ? ceil_div(ops->busy_outputs, outputs) : 1;
    size_t parts = ceil_div((size_t)count, most);
    g.n = (int)ceil_div((size_t)count, parts);
    for (int at = 0; at < count; at += g.n)
        out->batch[out->n++] = (MuonBatch){first + at, min_int(g.n, count - at)};
    size_t size = (size_t)g.units * (size_t)g.rows * (size_t)g.cols;
    size_t need = (size_t)g.n * size + muon_scratch(&g);
    if (need > out->elements) out->elements = need;
}

void muon_batches(MuonBatches *out, const TensorTable *t, const Config *c, const Ops *ops) {
    *out = (MuonBatches){.order = mem_alloc((size_t)t->n, sizeof(int)),
                         .batch = mem_alloc((size_t)t->n, sizeof(MuonBatch))};
    bool *taken = mem_alloc((size_t)t->n, sizeof(bool));
    int n = 0;
    for (int i = 0; i < t->n; i++) {
        const TensorSpec *s = &t->tensor[i].spec;
        if (taken[i] || !muon_takes(s, c)) continue;
        int first = n;
        for (int j = i; j < t->n; j++) {
            const TensorSpec *other = &t->tensor[j].spec;
            if (taken[j] || !muon_takes(other, c) || !go_together(s, other, c)) continue;
            taken[j] = true;
            out->order[n++] = j;
        }
        add_batches(out, first, n - first, muon_group(s, c), ops);
    }
    mem_free(taken);
}

void muon_batches_free(MuonBatches *b) {
    mem_free(b->order);
    mem_free(b->batch);
}

void muon_orthogonalize(const Ops *ops, float *x, float *scratch, const MuonGroup *g, int steps) {
    const float a = 3.4445f, b = -4.7750f, c = 2.0315f;
    bool tall = g->rows > g->cols;
    int small = min_int(g->rows, g->cols), count = g->n * g->units;
    size_t size = (size_t)g->rows * (size_t)g->cols, square = (size_t)small * (size_t)small;
    size_t ld = (size_t)g->cols, n = (size_t)count;
    float *gram = scratch, *poly = gram + n * square, *next = poly + n * square;
    GemmOp op = {.batch = count,
                 .a_type = TYPE_F32,
                 .b_type = TYPE_F32,
                 .c_type = TYPE_F32,
                 .compute = g->compute,
                 .alpha = 1};
    // gram = X X^T (wide) or X^T X (tall); poly = b gram + c gram gram;
    // X = a X + poly X (wide) or a X + X poly (tall).
    GemmOp to_gram = op, to_poly = op, to_next = op;
    to_gram.symmetric = to_poly.symmetric = true;
    to_gram.M = to_gram.N = small, to_gram.K = tall ? g->rows : g->cols;
    to_gram.ta = tall, to_gram.tb = !tall, to_gram.lda = to_gram.ldb = ld;
    to_gram.ldc = (size_t)small, to_gram.stride_a = to_gram.stride_b = size,
    to_gram.stride_c = square;
    to_poly.M = to_poly.N = to_poly.K = small, to_poly.alpha = c, to_poly.beta = 1;
    to_poly.lda = to_poly.ldb = to_poly.ldc = (size_t)small;
    to_poly.stride_a = to_poly.stride_b = to_poly.stride_c = square;
    to_next.M = g->rows, to_next.N = g->cols, to_next.K = small, to_next.beta = 1;
    to_next.lda = tall ? ld : (size_t)small, to_next.ldb = tall ? (size_t)small : ld,
    to_next.ldc = ld;
    to_next.stride_a = tall ? size : square, to_next.stride_b = tall ? square : size;
    to_next.stride_c = size;
    ops->muon_normalize(x, size, count, size, 1e-7f);
    for (int i = 0; i < steps; i++) {
        ops->gemm(gram, x, x, &to_gram);
        ops->scale_copy(poly, gram, n * square, b);
        ops->gemm(poly, gram, gram, &to_poly);
        ops->scale_copy(next, x, n * size, a);
        ops->gemm(next, tall ? x : poly, tall ? poly : x, &to_next);
        ops->scale_copy(x, next, n * size, 1);
    }
}
