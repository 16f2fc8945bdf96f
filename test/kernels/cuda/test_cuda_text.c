// test_cuda_text.c - a trained model on the CUDA tables: cached decoding equals the forward pass,
// logits follow the CPU's, and greedy text is the CPU's wherever the choice is not a toss-up.
#include <math.h>
#include <string.h>

#include "gpt/generate.h"
#include "gpt/load.h"
#include "test/kernels/cuda/twin.h"
#include "test/small_tokenizer.h"
#include "test/tiny_run.h"

enum { V = TINY_VOCAB, T = TINY_SEQ, PREFILL = 6 };

static const Ops *open_cuda(ElemType act, Error *err) {
    return cuda_open(0, err) ? ops_cuda(act) : NULL;
}
static const Ops *open_cpu(ElemType act, Error *err) {
    (void)act, (void)err;
    return ops_cpu();
}

// The run's model on a device.
static Loaded load(TestCtx *t, const TinyRun *r, const char *device, const char *compute) {
    static const Device devices[] = {{"cuda", open_cuda}, {"cpu", open_cpu}};
    const Program program = {devices, 2};
    const char *overrides[] = {compute, "train.threads=1"};
    char *path = tiny_path(r, "run");
    Loaded l;
    Error err;
    bool ok = loaded_open(&l, path, overrides, 2, &program, device, &err);
    CHECK_MSG(t, ok, "%s", err.text);
    if (!ok) die("%s", err.text);
    mem_free(path);
    return l;
}

static void collect(void *ctx, int sample, const char *text, size_t n) {
    (void)sample;
    buf_add(ctx, text, n);
}

static Buf greedy(TestCtx *t, const Loaded *l, const char *prompt) {
    const GenerateOptions o = {.tokens = 8,
                               .samples = 1,
                               .ignore_eot = true,
                               .sample = {.top_p = 1, .repetition_penalty = 1}};
    Buf text = {0};
    GenerateStats stats;
    Error err;
    buf_add(&text, "", 0);
    bool ok =
        generate_text(l->m, l->tok, prompt, strlen(prompt), &o, collect, &text, NULL, &stats, &err);
    CHECK_MSG(t, ok, "%s", err.text);
    return text;
}

static void by_forward(Model *m, const int *ids, float *logits) {
    model_alloc_acts(m, 1, T);
    model_logits(m, ids, logits);
}

static int best(const float *x, float *gap) {
    int at = 0;
    for (int i = 1; i < V; i++)
        at = x[i] > x[at] ? i : at;
    *gap = INFINITY;
    for (int i = 0; i < V; i++) {
        if (i != at && x[at] - x[i] < *gap) *gap = x[at] - x[i];
    }
    return at;
}

// Logits of bf16 models stay this close to those of the same model in fp32.
static double bf16_bound(const float *logits, int n) {
    double most = 0;
    for (int i = 0; i < n; i++)
        most = fmax(most, fabs((double)logits[i]));
    return 0.05 + 0.01 * most;
}

// The likeliest token is the same where both may be wrong by `bound` and it still leads.
static int same_choices(TestCtx *t, const char *label, const float *got, const float *want,
                        double bound) {
    int clear = 0;
    for (int i = 0; i < T; i++) {
        float gap, ignored;
        int a = best(want + (size_t)i * V, &gap), b = best(got + (size_t)i * V, &ignored);
        if ((double)gap <= 2 * bound) continue;
        clear++;
        CHECK_MSG(t, a == b, "%s: token %d at %d, expected %d with a lead of %g", label, b, i, a,
                  (double)gap);
    }
    return clear;
}

static void check_variant(TestCtx *t, const char *label, const TinyRun *r) {
    enum { N = T * V };
    static const char *const compute[] = {"train.compute=fp32", "train.compute=bf16"};
    static const char *const prompts[] = {"hello", "the wo"};
    float *want = mem_alloc(N, sizeof(float)), *full = mem_alloc(N, sizeof(float)),
          *cached = mem_alloc(N, sizeof(float));
    int ids[T];
    tiny_ids(ids, T, V, 3);
    Loaded cpu = load(t, r, "cpu", compute[0]);
    tiny_by_cache(cpu.m, ids, T, PREFILL, want);
    double bound = bf16_bound(want, N);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        Loaded cuda = load(t, r, "cuda", compute[bf16]);
        double rel = bf16 ? 0 : 1e-4, abs = bf16 ? bound : 0;
        tiny_by_cache(cuda.m, ids, T, PREFILL, cached);
        by_forward(cuda.m, ids, full);
        CHECK_CLOSE(t, cached, full, .what = label, .n = N, .rel_tol = rel, .abs_tol = abs);
        CHECK_CLOSE(t, cached, want, .what = label, .n = N, .rel_tol = rel, .abs_tol = abs);
        int clear = same_choices(t, label, cached, want, bf16 ? bound : 1e-4);
        CHECK_MSG(t, clear >= T / 4, "%s: only %d clear choices", label, clear);
        for (int i = 0; i < 2 && !bf16; i++) {
            Buf a = greedy(t, &cuda, prompts[i]), b = greedy(t, &cpu, prompts[i]);
            CHECK_MSG(t, a.n == b.n && b.n && !memcmp(a.text, b.text, a.n), "%s: '%s', not '%s'",
                      label, a.text, b.text);
            buf_free(&a);
            buf_free(&b);
        }
        loaded_close(&cuda);
    }
    loaded_close(&cpu);
    mem_free(want);
    mem_free(full);
    mem_free(cached);
}

static void text_is_that_of_the_cpu(TestCtx *t) {
    set_threads(1);
    FOR_EACH_TINY(v) {
        TinyRun *r = tiny_open();
        Config c;
        tiny_run_config(r, &c, v->settings, "train.steps=40 optim.matrix.lr=0.05");
        tiny_must_train(t, r, &c, tiny_ops());
        check_variant(t, v->label, r);
        tiny_close(r);
    }
}

// A cache of fp32 or bf16, rows of different lengths, every variant.
static void ragged_rows_follow_the_cpu(TestCtx *t) {
    FOR_EACH_TINY(v) {
        for (int kv_bf16 = 0; kv_bf16 < 2; kv_bf16++) {
            Config c;
            tiny_config(&c, v->settings,
                        kv_bf16 ? "generate.kv_type=bf16" : "generate.kv_type=fp32");
            enum { N = 2 * 4 * V };
            float *logits[3];
            for (int k = 0; k < 3; k++) {  // CPU, fp32, bf16
                const Ops *ops =
                    k ? open_cuda(k == 1 ? TYPE_F32 : TYPE_BF16, &(Error){{0}}) : ops_cpu();
                Model *m = model_create(&c, ops, false);
                model_init(m, 1);
                Cache *cache = cache_create(m, 2, T, PREFILL);
                int ids[2 * PREFILL], n_new[2] = {PREFILL, 4};
                tiny_ids(ids, 2 * PREFILL, V, 9);
                logits[k] = mem_alloc(N, sizeof(float));
                model_extend(m, cache, ids, PREFILL, n_new, logits[k], false);
                for (int i = 1; i < 4; i++) {
                    n_new[0] = n_new[1] = 1;
                    model_extend(m, cache, ids + i, 1, n_new, logits[k] + (size_t)i * 2 * V, false);
                }
                cache_free(m, cache);
                model_free(m);
                double tol = k == 2 ? 3e-2 : kv_bf16 ? 5e-3 : 1e-4;
                if (k)
                    CHECK_CLOSE(t, logits[k], logits[0], .what = v->label, .n = N, .rel_tol = tol);
            }
            for (int k = 0; k < 3; k++)
                mem_free(logits[k]);
        }
    }
}

TEST_MAIN({"text_is_that_of_the_cpu", text_is_that_of_the_cpu},
          {"ragged_rows_follow_the_cpu", ragged_rows_follow_the_cpu})
