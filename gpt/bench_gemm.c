// bench_gemm.c - the products of a training step by themselves: forward, gradient of the input,
// gradient of the weight, for every shape that the configs have, each shape once. The head comes in
// the rows in which the loss computes it.
#include "gpt/bench.h"

#include <string.h>

enum { MAX_SHAPES = 256, TENSOR_LIST_MAX = 80 };

typedef struct Shape {
    const char *config;
    char tensor[TENSOR_LIST_MAX];
    int OC, IC;
    size_t rows;
} Shape;

typedef struct Shapes {
    Shape shape[MAX_SHAPES];
    int n;
} Shapes;

static void add_shape(Shapes *s, Shape one) {
    for (int i = 0; i < s->n; i++) {
        const Shape *o = &s->shape[i];
        if (o->OC == one.OC && o->IC == one.IC && o->rows == one.rows) return;
    }
    if (s->n < MAX_SHAPES) s->shape[s->n++] = one;
}

// "wq+wk+wv" of the run of joined rows that starts at row i, and its height.
static int joined(const TensorTable *t, int i, char *name, size_t size) {
    int rows = 0;
    size_t used = 0;
    for (int j = i; j == i || (j < t->n && t->tensor[j].spec.join); j++) {
        const char *dot = strrchr(t->tensor[j].name, '.');
        const char *one = dot && strcmp(dot, ".weight") ? dot + 1 : t->tensor[j].name;
        int n = snprintf(name + used, size - used, "%s%s", j > i ? "+" : "", one);
        used = min_size(used + (size_t)n, size - 1);
        rows += spec_rows(&t->tensor[j].spec);
    }
    return rows;
}

static void parameter_shapes(Shapes *s, const char *name, const Config *c, const Ops *ops) {
    size_t N = (size_t)c->batch.tokens, head_rows = model_logit_rows(c, ops, N);
    TensorTable t;
    model_params(&t, c, ops->elem_size);
    for (int i = 0; i < t.n; i++) {
        const TensorSpec *spec = &t.tensor[i].spec;
        bool tied = c->model.tied_embeddings && strcmp(t.tensor[i].name, "wte") == 0;
        bool head = spec->kind == KIND_HEAD || tied;
        if (t.tensor[i].layer > 0 || spec->join || spec->raw) continue;
        if (!head && spec->kind != KIND_MATRIX) continue;
        Shape one = {.config = name, .IC = spec_cols(spec), .rows = head ? head_rows : N};
        one.OC = joined(&t, i, one.tensor, sizeof one.tensor);
        add_shape(s, one);
    }
    tensor_table_free(&t);
}

static void derived_shapes(Shapes *s, const char *name, const Config *c) {
    const Attention *a = attention_find(c->attention.type);
    TensorSpec derived[ATTN_MAX_TENSORS] = {{0}};
    AttnDims d = config_attn_dims(c, c->batch.micro_batch, c->model.seq_len, c->model.seq_len);
    int n = a->derived ? a->derived(derived, &d) : 0;
    for (int i = 0; i < n; i++) {
        if (derived[i].raw) continue;
        Shape one = {.config = name,
                     .OC = spec_rows(&derived[i]),
                     .IC = spec_cols(&derived[i]),
                     .rows = (size_t)c->batch.tokens};
        snprintf(one.tensor, sizeof one.tensor, "%s", derived[i].name);
        add_shape(s, one);
    }
}

// One shape on the device.
typedef struct Product {
    const Ops *ops;
    Weight w;
    floatX *data, *inp, *out;  // (OC, IC), (rows, IC), (rows, OC)
    float *dw;                 // (OC, IC)
    size_t rows;
} Product;

static floatX *noise_on_device(const Ops *ops, size_t n, const float *noise) {
    floatX *x = ops->alloc(n * ops->elem_size);
    ops->upload(x, noise, n);
    ops->sync();
    return x;
}

static void product_open(Product *p, const Ops *ops, const Shape *s, ElemType compute) {
    size_t OC = (size_t)s->OC, IC = (size_t)s->IC, most = OC * IC;
    if (s->rows * OC > most) most = s->rows * OC;
    if (s->rows * IC > most) most = s->rows * IC;
    float *noise = bench_noise(most);
    *p = (Product){.ops = ops, .rows = s->rows};
    p->data = noise_on_device(ops, OC * IC, noise);
    p->inp = noise_on_device(ops, s->rows * IC, noise);
    p->out = noise_on_device(ops, s->rows * OC, noise);
    p->dw = ops->alloc(OC * IC * sizeof(float));
    mem_free(noise);
    size_t packed = ops->weight_bytes(s->OC, s->IC, compute);
    p->w = (Weight){.data = p->data, .OC = s->OC, .IC = s->IC, .compute = compute};
    if (packed) p->w.forward = ops->alloc(packed), p->w.backward = ops->alloc(packed);
    ops->weight_prepare(&p->w);
    ops->sync();
}

static void product_close(Product *p) {
    p->ops->free(p->data);
    p->ops->free(p->inp);
    p->ops->free(p->out);
    p->ops->free(p->dw);
    p->ops->free(p->w.forward);
    p->ops->free(p->w.backward);
}

// Pass 0 writes out, 1 writes inp, 2 adds to dw; the operands of the later passes stay finite.
static double run_once(Product *p, int pass) {
    size_t OC = (size_t)p->w.OC, IC = (size_t)p->w.IC;
    double start = now_seconds();
    if (pass == 0)
        p->ops->matmul(p->out, OC, p->inp, IC, &p->w, NULL, 0, p->rows);
    else if (pass == 1)
        p->ops->matmul_dx(p->inp, IC, p->out, OC, &p->w, p->rows, false);
    else
        p->ops->matmul_dw(p->dw, p->out, OC, p->inp, IC, &p->w, p->rows);
    p->ops->sync();
    return now_seconds() - start;
}

static void measure_shape(Bench *b, const Shape *s, int k) {
    BenchTable *t = &b->table[BENCH_GEMM];
    int row = bench_row(t);
    bench_set_text(t, row, GEMM_CONFIG, s->config);
    bench_set_text(t, row, GEMM_TENSOR, s->tensor);
    bench_set_text(t, row, GEMM_COMPUTE, elem_name(b->compute[k]));
    bench_set(t, row, GEMM_ROWS, (double)s->rows);
    bench_set(t, row, GEMM_OC, s->OC);
    bench_set(t, row, GEMM_IC, s->IC);
    Product p;
    product_open(&p, b->ops[k], s, b->compute[k]);
    double seconds = bench_item_seconds(b) / 3;
    for (int pass = 0; pass < 3; pass++) {
        BenchTimes times = {.n = 0};
        run_once(&p, pass);
        while (bench_more(&times, b->repeat, seconds))
            bench_add(&times, run_once(&p, pass));
        double median = bench_median(&times);
        bench_set(t, row, GEMM_SECONDS + pass, median);
        bench_set(t, row, GEMM_SPEED + pass, 2.0 * (double)s->rows * s->OC * s->IC / median);
    }
    product_close(&p);
}

bool bench_gemm(Bench *b, Error *err) {
    (void)err;
    Shapes *s = mem_alloc(1, sizeof *s);
    for (int i = 0; i < b->n_configs; i++) {
        Config c = bench_step_config(b, &b->config[i].c, b->compute[0]);
        parameter_shapes(s, b->config[i].name, &c, b->ops[0]);
        derived_shapes(s, b->config[i].name, &c);
    }
    b->items = s->n * b->n_compute;
    for (int k = 0; k < b->n_compute; k++) {
        for (int i = 0; i < s->n; i++) {
            bench_progress(b, "gemm", s->shape[i].tensor, elem_name(b->compute[k]));
            measure_shape(b, &s->shape[i], k);
        }
    }
    mem_free(s);
    return true;
}
