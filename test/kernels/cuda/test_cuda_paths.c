// test_cuda_paths.c - the attention of the configs, on one narrow layer in bf16: nothing of it
// comes from the plain kernels, in training, prefill or decoding, and the logits are the CPU's.
#include <math.h>

#include "test/emu/emu_launches.h"
#include "test/kernels/cuda/twin.h"
#include "test/tiny_run.h"

enum { T = 24, PREFILL = 22, V = 64 };

// A config, and settings on top ("a.b=c d.e=f"), NULL: none.
static const struct Narrow {
    const char *path, *more;
} narrow[] = {{"configs/128m-mha.json", NULL},
              {"configs/128m-mqa.json", NULL},
              {"configs/128m-gqa.json", NULL},
              {"configs/128m-mla.json", NULL},
              {"configs/128m-mla-decoupled.json", NULL},
              {"configs/128m-lrkv.json", NULL},
              {"configs/2.5b-mla.json", "model.n_head=3"},
              {"configs/2.5b-lrkv.json", "model.n_head=3"},
              {"configs/gpt2-124m.json", "model.head_dim=64 model.n_head=3 model.embed_std=0.3"}};
enum { N_NARROW = sizeof narrow / sizeof narrow[0] };

static void narrow_config(Config *c, const struct Narrow *n) {
    Error err;
    if (!config_load(c, n->path, &err)) die("%s", err.text);
    tiny_set(c, "model.n_layer=1 model.n_embd=64 model.ffn_dim=64 model.vocab_size=64 "
                "model.seq_len=24 model.head_std=0.3 model.zero_init_proj=false batch.tokens=24 "
                "train.threads=1 generate.kv_type=auto");
    tiny_set(c, n->more);
    if (!config_finish(c, &err)) die("%s: %s", n->path, err.text);
}

// The parts of it that ran on plain kernels; 0 where nobody counts, on a GPU.
static int plain_launches(const Ops *g) {
    g->sync();
    return emu_launches_from ? emu_launches_from("_plain") : 0;
}

static Model *cuda_model(const Config *c, ElemType act, bool training) {
    Error err;
    if (!cuda_open(0, &err)) die("%s", err.text);
    Model *m = model_create(c, ops_cuda(act), training);
    model_init(m, 1);
    return m;
}

static void one_step(Model *m, const int *ids) {
    model_alloc_acts(m, 1, T);
    model_step_begin(m);
    model_step(m, ids, ids, T, true, true, NULL, NULL);
}

static void bf16_runs_on_tensor_cores(TestCtx *t) {
    int ids[T];
    float *want = mem_alloc(T * V, sizeof(float)), *got = mem_alloc(T * V, sizeof(float));
    set_threads(1);
    tiny_ids(ids, T, V, 3);
    for (int i = 0; i < N_NARROW; i++) {
        const char *label = narrow[i].path;
        Config c;
        narrow_config(&c, &narrow[i]);
        Model *m = tiny_model(&c, false);
        tiny_by_cache(m, ids, T, PREFILL, want);
        model_free(m);
        if (emu_forget_launches) emu_forget_launches();
        m = cuda_model(&c, TYPE_BF16, true);
        one_step(m, ids);
        CHECK_MSG(t, plain_launches(m->ops) == 0, "%s: training on plain kernels", label);
        tiny_by_cache(m, ids, T, PREFILL, got);
        CHECK_MSG(t, plain_launches(m->ops) == 0, "%s: a cache on plain kernels", label);
        model_free(m);
        double most = 0;
        for (int k = 0; k < T * V; k++)
            most = fmax(most, fabs((double)want[k]));
        CHECK_CLOSE(t, got, want, .what = label, .n = T * V, .abs_tol = 0.02 * most);
    }
    mem_free(want);
    mem_free(got);
}

// So that the test above can fail: fp32 has plain kernels alone.
static void fp32_is_counted(TestCtx *t) {
    int ids[T];
    Config c;
    set_threads(1);
    tiny_ids(ids, T, V, 3);
    narrow_config(&c, &narrow[0]);
    Model *m = cuda_model(&c, TYPE_F32, true);
    if (emu_forget_launches) emu_forget_launches();
    one_step(m, ids);
    CHECK(t, plain_launches(m->ops) > 0 || !emu_launches_from);
    model_free(m);
}

// generate.kv_type=auto is the type of activations.
static void caches_have_the_type_of_activations(TestCtx *t) {
    Config c;
    set_threads(1);
    narrow_config(&c, &narrow[0]);
    for (int k = 0; k < 3; k++) {
        Model *m = k < 2 ? cuda_model(&c, k ? TYPE_BF16 : TYPE_F32, false) : tiny_model(&c, false);
        Cache *cache = cache_create(m, 1, T, 1);
        CHECK(t, cache->spec[0].type == (k == 1 ? TYPE_BF16 : TYPE_F32));
        cache_free(m, cache);
        model_free(m);
    }
}

TEST_MAIN({"bf16_runs_on_tensor_cores", bf16_runs_on_tensor_cores},
          {"fp32_is_counted", fp32_is_counted},
          {"caches_have_the_type_of_activations", caches_have_the_type_of_activations})
