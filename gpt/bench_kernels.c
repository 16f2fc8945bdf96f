// bench_kernels.c - every op of the table by itself, at the sizes that a config gives it. What one
// call computes and moves stands beside the call and nowhere else; the counts are those of
// bench/roofline.py, for one layer. Ops that wait for the host are timed as well.
#include "gpt/bench_kernels.h"

#include <math.h>
#include <string.h>

// --- Time: calls are enqueued in bursts that are long enough for the clock, with a wait behind
// each.
static const double SHORTEST = 0.002;
enum { MOST_CALLS = 1 << 14 };

void kernel_begin(Kernels *k, const char *name, double flops, double bytes) {
    k->name = name, k->flops = flops, k->bytes = bytes;
    k->left = 1, k->burst = 0;
    k->times = (BenchTimes){.n = 0};
    k->seconds = bench_item_seconds(k->b);
}

static void record(const Kernels *k) {
    BenchTable *t = &k->b->table[BENCH_KERNELS];
    int row = bench_row(t);
    double seconds = bench_median(&k->times);
    bench_set_text(t, row, KERNEL_CONFIG, k->config);
    bench_set_text(t, row, KERNEL_COMPUTE, elem_name(k->compute));
    bench_set_text(t, row, KERNEL_OP, k->name);
    bench_set(t, row, KERNEL_SECONDS, seconds);
    bench_set(t, row, KERNEL_FLOPS, k->flops > 0 ? k->flops : NAN);
    bench_set(t, row, KERNEL_BYTES, k->bytes);
    bench_set(t, row, KERNEL_SPEED, k->flops > 0 ? k->flops / seconds : NAN);
    bench_set(t, row, KERNEL_BANDWIDTH, k->bytes / seconds);
    bench_set(t, row, KERNEL_REPETITIONS, k->times.n);
}

bool kernel_again(Kernels *k) {
    if (k->left > 0) {
        k->left--;
        return true;
    }
    k->ops->sync();
    double spent = now_seconds() - k->start;
    if (k->burst == 0) {
        k->burst = 1;
    } else if (spent < SHORTEST && k->burst < MOST_CALLS) {
        k->burst *= 4;
    } else {
        bench_add(&k->times, spent / k->burst);
        if (!bench_more(&k->times, k->b->repeat, k->seconds / k->burst)) {
            record(k);
            return false;
        }
    }
    k->left = k->burst - 1;
    k->start = now_seconds();
    return true;
}

// --- Buffers

static void *keep(Kernels *k, size_t bytes) {
    if (k->n_buffers == KERNEL_BUFFERS) die("bench: %s has too many buffers", k->name);
    return k->buffer[k->n_buffers++] = k->ops->alloc(bytes);
}

// What the host gave, doubled on the device until it is long enough.
static void spread(const Kernels *k, char *p, size_t have, size_t bytes) {
    while (have < bytes) {
        size_t more = min_size(have, bytes - have);
        k->ops->copy(p + have, p, more);
        have += more;
    }
}

floatX *kernel_fx(Kernels *k, size_t n) {
    size_t e = k->ops->elem_size, have = min_size(n, KERNEL_NOISE);
    floatX *x = keep(k, n * e);
    k->ops->upload(x, k->noise, have);
    spread(k, (char *)x, have * e, n * e);
    return x;
}

float *kernel_f32(Kernels *k, size_t n) {
    size_t have = min_size(n, KERNEL_NOISE);
    float *x = keep(k, n * sizeof(float));
    k->ops->upload_bytes(x, k->noise, have * sizeof(float));
    spread(k, (char *)x, have * sizeof(float), n * sizeof(float));
    return x;
}

int *kernel_ints(Kernels *k, const int *values, size_t n) {
    int *p = keep(k, n * sizeof(int));
    k->ops->upload_bytes(p, values, n * sizeof(int));
    return p;
}

static int *token_ids(Kernels *k) {
    int *ids = bench_ids(k->N, k->c.model.vocab_size), *p = kernel_ints(k, ids, k->N);
    mem_free(ids);
    return p;
}

static void free_buffers(Kernels *k) {
    k->ops->sync();
    while (k->n_buffers > 0)
        k->ops->free(k->buffer[--k->n_buffers]);
}

// --- The cases. C channels, F width of the MLP, N tokens, e bytes of an activation.

static void memory(Kernels *k) {
    const Ops *ops = k->ops;
    size_t n = k->N * (size_t)k->d.C, e = ops->elem_size;
    floatX *x = kernel_fx(k, n), *y = kernel_fx(k, n);
    float *host = mem_alloc(n, sizeof(float));
    TIMED(k, "zero", 0, (double)(n * e)) ops->zero(x, n * e);
    TIMED(k, "copy", 0, (double)(2 * n * e)) ops->copy(y, x, n * e);
    TIMED(k, "upload_bytes", 0, (double)(n * e)) ops->upload_bytes(x, host, n * e);
    TIMED(k, "download_bytes", 0, (double)(n * e)) ops->download_bytes(host, x, n * e);
    TIMED(k, "upload", 0, (double)(n * 4)) ops->upload(x, host, n);
    TIMED(k, "download", 0, (double)(n * 4)) ops->download(host, x, n);
    mem_free(host);
}

static void products(Kernels *k) {
    const Ops *ops = k->ops;
    size_t N = k->N, C = (size_t)k->d.C, F = (size_t)k->c.model.ffn_dim, e = ops->elem_size;
    floatX *x = kernel_fx(k, N * C), *y = kernel_fx(k, N * F);
    float *dw = kernel_f32(k, F * C), *bias = kernel_f32(k, F);
    Weight w = {.data = kernel_fx(k, F * C), .OC = (int)F, .IC = (int)C, .compute = k->compute};
    size_t packed = ops->weight_bytes(w.OC, w.IC, k->compute);
    if (packed) w.forward = keep(k, packed), w.backward = keep(k, packed);
    double flops = 2.0 * (double)N * (double)C * (double)F, io = (double)(e * N * (C + F)),
           elements = (double)(F * C);
    double packing = packed ? elements * (double)e + 2 * (double)packed : 0;
    TIMED(k, "weight_prepare", 0, packing) ops->weight_prepare(&w);
    TIMED(k, "matmul", flops, io + elements * (double)e)
    ops->matmul(y, F, x, C, &w, NULL, 0, N);
    TIMED(k, "matmul + bias", flops, io + elements * (double)e)
    ops->matmul(y, F, x, C, &w, bias, (int)F, N);
    TIMED(k, "matmul_dx", flops, io + elements * (double)e)
    ops->matmul_dx(x, C, y, F, &w, N, false);
    TIMED(k, "matmul_dw", flops, io + 8 * elements) ops->matmul_dw(dw, y, F, x, C, &w, N);
    TIMED(k, "bias_dw", 0, (double)(e * N * F)) ops->bias_dw(bias, y, F, N, (int)F);
    TIMED(k, "bias_add", 0, (double)(2 * e * N * F)) ops->bias_add(y, F, bias, N, (int)F);
}

// Newton-Schulz's smallest product.
static void batched(Kernels *k) {
    size_t C = (size_t)k->d.C;
    GemmOp g = {.M = (int)C, .N = (int)C, .K = (int)C, .batch = 2, .tb = true};
    g.lda = g.ldb = g.ldc = C, g.stride_a = g.stride_b = g.stride_c = C * C;
    g.a_type = g.b_type = g.c_type = TYPE_F32, g.alpha = 1;
    g.compute = (ElemType)k->c.optim.muon_compute;
    float *a = kernel_f32(k, 2 * C * C), *out = kernel_f32(k, 2 * C * C);
    double n = (double)C;
    TIMED(k, "gemm", 4 * n * n * n, 16 * n * n) k->ops->gemm(out, a, a, &g);
}

static void embedding(Kernels *k) {
    const Ops *ops = k->ops;
    size_t C = (size_t)k->d.C, V = (size_t)k->c.model.vocab_size, T = (size_t)k->d.T;
    int *ids = token_ids(k);
    floatX *wte = kernel_fx(k, V * C), *wpe = kernel_fx(k, T * C), *x = kernel_fx(k, k->N * C);
    float *dwte = kernel_f32(k, V * C);
    double rows = (double)(k->N * C), e = (double)ops->elem_size;
    TIMED(k, "embed_forward", 0, 2 * e * rows)
    ops->embed_forward(x, ids, wte, NULL, 0, NULL, k->d.B, k->d.T, k->d.C);
    TIMED(k, "embed_forward + positions", 0, 3 * e * rows)
    ops->embed_forward(x, ids, wte, wpe, k->d.T, NULL, k->d.B, k->d.T, k->d.C);
    TIMED(k, "embed_backward", 0, (e + 8) * rows)
    ops->embed_backward(dwte, NULL, x, ids, k->d.B, k->d.T, k->d.C);
}

static void norms(Kernels *k) {
    const Ops *ops = k->ops;
    size_t C = (size_t)k->d.C, n = k->N * C;
    NormArgs a = {(NormKind)k->c.model.norm, k->N, k->d.C, 1e-6f};
    bool layer = a.kind == NORM_LAYER;
    floatX *x = kernel_fx(k, n), *res = kernel_fx(k, n), *out = kernel_fx(k, n),
           *next = kernel_fx(k, n);
    float *gain = kernel_f32(k, C), *shift = layer ? kernel_f32(k, C) : NULL;
    float *mean = layer ? kernel_f32(k, k->N) : NULL, *rstd = kernel_f32(k, k->N);
    double bytes = 4.0 * (double)(n * ops->elem_size) + 4 * (double)k->N;
    TIMED(k, "add_norm_forward", 0, bytes)
    ops->add_norm_forward(out, next, mean, rstd, res, x, gain, shift, &a);
    TIMED(k, "add_norm_backward", 0, bytes)
    ops->add_norm_backward(res, gain, shift, out, next, gain, mean, rstd, &a);
}

static void activations(Kernels *k) {
    static const struct {
        ActKind kind;
        const char *forward, *backward;
    } list[] = {{ACT_GELU, "act_forward gelu", "act_backward gelu"},
                {ACT_RELU2, "act_forward relu2", "act_backward relu2"},
                {ACT_SWIGLU, "act_forward swiglu", "act_backward swiglu"}};
    const Ops *ops = k->ops;
    size_t F = (size_t)k->c.model.ffn_dim, n = k->N * F;
    floatX *in = kernel_fx(k, 2 * n), *out = kernel_fx(k, n), *din = kernel_fx(k, 2 * n);
    double unit = (double)(n * ops->elem_size);
    for (int i = 0; i < 3; i++) {
        int wide = list[i].kind == ACT_SWIGLU ? 2 : 1;
        TIMED(k, list[i].forward, 0, (1 + wide) * unit)
        ops->act_forward(out, in, list[i].kind, k->N, (int)F);
        TIMED(k, list[i].backward, 0, (1 + 2 * wide) * unit)
        ops->act_backward(din, out, in, list[i].kind, k->N, (int)F);
    }
    TIMED(k, "add", 0, 3 * unit) ops->add(out, out, in, n);
}

static void loss(Kernels *k) {
    const Ops *ops = k->ops;
    size_t n = model_logit_rows(&k->c, ops, k->N), Vp = (size_t)config_padded_vocab(&k->c);
    int V = k->c.model.vocab_size;
    int *targets = token_ids(k);
    floatX *logits = kernel_fx(k, n * Vp);
    float *losses = kernel_f32(k, k->N), cap = (float)k->c.model.logit_softcap;
    double once = (double)(n * Vp * ops->elem_size);
    TIMED(k, "classifier", 0, once)
    ops->classifier(logits, losses, targets, n, V, (int)Vp, cap, 0, false);
    TIMED(k, "classifier + gradient", 0, 2 * once)
    ops->classifier(logits, losses, targets, n, V, (int)Vp, cap, 1e-3f, true);
    TIMED(k, "softcap", 0, 2 * once) ops->softcap(logits, n * Vp, 15);
    TIMED(k, "loss_add", 0, 4 * (double)k->N) ops->loss_add(k->state, losses, k->N, 1e-6);
}

// On one matrix of the MLP.
static void optimizers(Kernels *k) {
    const Ops *ops = k->ops;
    size_t n = (size_t)k->c.model.ffn_dim * (size_t)k->d.C;
    floatX *p = kernel_fx(k, n);
    float *m = kernel_f32(k, n), *v = kernel_f32(k, n), *g = kernel_f32(k, n),
          *own = kernel_f32(k, n), *master = ops->elem_size == sizeof(float) ? NULL : own;
    StepState *sums = keep(k, sizeof *sums);
    AdamWArgs a = {TYPE_FX, 1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.1f, 0.05f, 1};
    double size = (double)n, param = master ? 8 + 2.0 : 8;
    ops->zero(v, n * sizeof(float));
    TIMED(k, "step_begin", 0, sizeof *sums) ops->step_begin(sums);
    TIMED(k, "grad_sumsq", 0, 4 * size) ops->grad_sumsq(sums, g, n, 0);
    TIMED(k, "grad_finish", 0, sizeof *sums) ops->grad_finish(sums, 1);
    TIMED(k, "adamw", 0, (20 + param) * size) ops->adamw(p, master, m, v, g, n, &a, k->state);
    TIMED(k, "muon_momentum", 0, 16 * size)
    ops->muon_momentum(own, m, g, n, 0.95f, true, k->state);
    TIMED(k, "muon_normalize", 0, 12 * size) ops->muon_normalize(own, n, 1, n, 1e-7f);
    TIMED(k, "scale_copy", 0, 8 * size) ops->scale_copy(own, g, n, 0.5f);
    TIMED(k, "axpy", 0, 12 * size) ops->axpy(own, g, n, 1e-6f);
    TIMED(k, "muon_apply", 0, (4 + param) * size)
    ops->muon_apply(p, master, TYPE_FX, g, n, 1e-4f, 0, 1, k->state);
}

static KernelCase *const cases[] = {memory,      products,    batched,        embedding,
                                    norms,       kernel_rope, kernel_lowrank, kernel_heads,
                                    activations, kernel_sdpa, kernel_extend,  kernel_lowrank_extend,
                                    loss,        optimizers};
enum { N_CASES = sizeof cases / sizeof cases[0], N_OPS = 51 };

static void measure(Bench *b, const BenchConfig *bc, int which, const float *noise) {
    Kernels k = {.b = b,
                 .config = bc->name,
                 .ops = b->ops[which],
                 .compute = b->compute[which],
                 .c = bench_step_config(b, &bc->c, b->compute[which]),
                 .noise = noise};
    int T = k.c.model.seq_len;
    k.d = config_attn_dims(&k.c, b->batch, T, T);
    k.N = (size_t)b->batch * (size_t)T;
    size_t table = (size_t)T * (size_t)(k.d.HS / 2 * 2);
    float *rope = k.ops->alloc(table * sizeof(float));
    k.rope = rope;
    k.state = k.ops->alloc(sizeof(StepState));
    k.ops->step_begin(k.state);
    for (int i = 0; i < N_CASES; i++) {
        cases[i](&k);
        free_buffers(&k);
    }
    k.ops->free(k.state);
    k.ops->free(rope);
}

bool bench_kernels(Bench *b, Error *err) {
    (void)err;
    float *noise = bench_noise(KERNEL_NOISE);
    b->items = N_OPS * b->n_configs * b->n_compute;
    for (int k = 0; k < b->n_compute; k++) {
        for (int i = 0; i < b->n_configs; i++) {
            bench_progress(b, "kernels", b->config[i].name, elem_name(b->compute[k]));
            measure(b, &b->config[i], k, noise);
        }
    }
    mem_free(noise);
    return true;
}
