// test_golden.c - the whole model and its optimizers against values of an independent fp64
// implementation (test/golden/README.md describes the fixtures). Logits, losses, gradients and
// weights after 10 steps are compared as norms and random projections; the last case proves that
// the comparison notices a setting that is slightly off.
#define _POSIX_C_SOURCE 200809L
#include "gpt/optim.h"
#include "gpt/rng.h"
#include "test/arrays.h"
#include "test/test.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <math.h>
#include <string.h>

#define FIXTURE_DIR "test/golden/fixtures"

enum { SKETCH = 3, PROJECTION_SEED = 7, PATH_LEN = 160 };

// Shares of a norm. fp32 arithmetic alone uses up to 2e-6 of the gradients and 2e-5 of the changes.
static const double tol_initial = 1e-6, tol_output = 2e-5, tol_loss = 1e-5, tol_gradient = 2e-5,
                    tol_change = 2e-4;

// How a run differs from what its fixture says; the default is not at all.
typedef struct Variation {
    int micro_batch;        // 0: all sequences at once
    const char *overrides;  // "section.field=value ...", or NULL
    double enough;          // 0: run it all; else stop before a step when the share is above this
} Variation;

typedef struct Worst {
    double share;  // largest |value - golden| / tolerance; passes when <= 1
    char where[128];
} Worst;

typedef struct Golden {
    cJSON *root;
    Config cfg;
    int B, T, n_steps;
    uint64_t seed;
    Model *m;
    float **start;  // each tensor before the first step, logical order
    int *ids, *targets;
    Worst worst;
} Golden;

static void worst_add(Worst *w, double off, double tolerance, const char *what, const char *name) {
    double share = off / tolerance;
    if (!(share < INFINITY)) share = INFINITY;
    if (share <= w->share) return;
    w->share = share;
    snprintf(w->where, sizeof w->where, "%s of %s", what, name);
}

static double number(const cJSON *array, int i) {
    const cJSON *item = cJSON_GetArrayItem(array, i);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static const cJSON *list(const Golden *g, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(g->root, name);
}

static double field(const Golden *g, const char *name) {
    const cJSON *item = list(g, name);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

// Norm and projections of x (n) against golden[first..first + SKETCH). The tolerance is tol times
// the golden norm plus `floor`.
static void compare(Golden *g, const char *what, const char *name, const float *x, size_t n,
                    const cJSON *golden, int first, double tol, double floor) {
    double sketch[SKETCH] = {0};
    for (size_t i = 0; i < n; i++)
        sketch[0] += (double)x[i] * (double)x[i];
    sketch[0] = sqrt(sketch[0]);
    for (int k = 1; k < SKETCH; k++) {
        char stream[TENSOR_NAME_MAX + 8];
        snprintf(stream, sizeof stream, "%s#proj%d", name, k - 1);
        uint64_t key = rng_key(PROJECTION_SEED, stream);
        for (size_t i = 0; i < n; i++)
            sketch[k] += (double)x[i] * rng_normal(key, i);
    }
    double tolerance = tol * (number(golden, first) + floor) + 1e-30;
    for (int k = 0; k < SKETCH; k++)
        worst_add(&g->worst, fabs(sketch[k] - number(golden, first + k)), tolerance, what, name);
}

static const cJSON *golden_tensor(const Golden *g, int i) {
    return cJSON_GetObjectItemCaseSensitive(list(g, "tensors"), g->m->params.tensor[i].name);
}

static bool apply_overrides(Config *c, const char *overrides, Error *err) {
    char *text = str_copy(overrides ? overrides : ""), *rest = text;
    bool ok = true;
    for (char *word = strtok_r(rest, " ", &rest); ok && word; word = strtok_r(NULL, " ", &rest))
        ok = config_override(c, word, err);
    mem_free(text);
    return ok;
}

static bool load(Golden *g, const char *fixture, const char *overrides, Error *err) {
    char path[PATH_LEN], *text = NULL;
    size_t bytes;
    snprintf(path, sizeof path, FIXTURE_DIR "/%s.json", fixture);
    if (!file_read(path, 1 << 20, &text, &bytes, err)) return false;
    g->root = cJSON_Parse(text);
    mem_free(text);
    if (!g->root) return error_set(err, "%s: is not JSON", path);
    char *config = cJSON_PrintUnformatted(list(g, "config"));
    config_default(&g->cfg);
    bool ok = config_parse(&g->cfg, config, path, err) &&
              apply_overrides(&g->cfg, overrides, err) && config_finish(&g->cfg, err);
    cJSON_free(config);
    g->seed = (uint64_t)field(g, "seed");
    g->B = (int)field(g, "B");
    g->T = (int)field(g, "T");
    g->n_steps = cJSON_GetArraySize(list(g, "losses"));
    return ok;
}

static bool all_equal(const float *x, size_t n, float value) {
    for (size_t i = 0; i < n; i++) {
        if (x[i] != value) return false;
    }
    return true;
}

// Zeros become noise and ones become ones with noise: a zero matrix would hide what is behind it.
static void add_noise(float *x, size_t n, const char *name, uint64_t seed) {
    bool zero = all_equal(x, n, 0);
    if (!zero && !all_equal(x, n, 1)) return;
    char stream[TENSOR_NAME_MAX + 8];
    snprintf(stream, sizeof stream, "%s#noise", name);
    uint64_t key = rng_key(seed, stream);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(zero ? 0.05 * rng_normal(key, i) : 1 + 0.1 * rng_normal(key, i));
}

// The model at its initial values, which are compared, and with its noise.
static void create(Golden *g) {
    Model *m = g->m = model_create(&g->cfg, ops_cpu(), true);
    model_init(m, g->seed);
    g->start = mem_alloc((size_t)m->params.n, sizeof *g->start);
    for (int i = 0; i < m->params.n; i++) {
        const Tensor *t = &m->params.tensor[i];
        size_t n = spec_logical(&t->spec);
        g->start[i] = mem_alloc(n, sizeof(float));
        model_get_tensor(m, i, g->start[i]);
        compare(g, "initial value", t->name, g->start[i], n, golden_tensor(g, i), 0, tol_initial,
                0);
        add_noise(g->start[i], n, t->name, g->seed);
        model_set_tensor(m, i, g->start[i]);
    }
    model_prepare(m);
    g->ids = mem_alloc((size_t)g->B * (size_t)g->T, sizeof(int));
    g->targets = mem_alloc((size_t)g->B * (size_t)g->T, sizeof(int));
}

static void destroy(Golden *g) {
    for (int i = 0; g->start && i < g->m->params.n; i++)
        mem_free(g->start[i]);
    mem_free(g->start);
    mem_free(g->ids);
    mem_free(g->targets);
    if (g->m) model_free(g->m);
    cJSON_Delete(g->root);
}

// Fills ids and targets of a step; returns how many targets there are.
static int draw_batch(Golden *g, int step) {
    char stream[32];
    snprintf(stream, sizeof stream, "batch#%d", step);
    uint64_t key = rng_key(g->seed, stream), V = (uint64_t)g->cfg.model.vocab_size;
    snprintf(stream, sizeof stream, "hide#%d", step);
    uint64_t hide = rng_key(g->seed, stream);
    int n = 0;
    for (int i = 0; i < g->B * g->T; i++) {
        uint64_t at = (uint64_t)(i / g->T * (g->T + 1) + i % g->T);
        g->ids[i] = (int)(rng_u64(key, at) % V);
        bool hidden = rng_u64(hide, (uint64_t)i) % 8 == 0;
        g->targets[i] = hidden ? -1 : (int)(rng_u64(key, at + 1) % V);
        n += !hidden;
    }
    return n;
}

static void compare_outputs(Golden *g, int micro) {
    size_t rows = (size_t)g->B * (size_t)g->T, V = (size_t)g->m->V;
    float *logits = mem_alloc(rows * V, sizeof(float)), *nats = mem_alloc(rows, sizeof(float));
    for (int b = 0; b < g->B; b += micro) {
        size_t at = (size_t)b * (size_t)g->T;
        model_logits(g->m, g->ids + at, logits + at * V);
        model_losses(g->m, g->ids + at, g->targets + at, nats + at);
    }
    compare(g, "forward", "logits", logits, rows * V, list(g, "logits"), 0, tol_output, 0);
    compare(g, "forward", "nats", nats, rows, list(g, "nats"), 0, tol_output, 0);
    mem_free(logits);
    mem_free(nats);
}

// A gradient that is zero but for rounding is compared with the gradient of everything.
static void compare_gradients(Golden *g) {
    Model *m = g->m;
    for (int i = 0; i < m->params.n; i++) {
        const Tensor *t = &m->params.tensor[i];
        size_t n = spec_logical(&t->spec), stored = spec_stored(&t->spec);
        float *padded = mem_alloc(stored, sizeof(float)), *x = mem_alloc(n, sizeof(float));
        m->ops->download_bytes(padded, m->grad_arena + t->offset, stored * sizeof(float));
        tensor_to_logical(x, padded, &t->spec);
        compare(g, "gradient", t->name, x, n, golden_tensor(g, i), SKETCH, tol_gradient,
                1e-2 * field(g, "grad_norm"));
        mem_free(padded);
        mem_free(x);
    }
}

static void compare_changes(Golden *g) {
    Model *m = g->m;
    for (int i = 0; i < m->params.n; i++) {
        const Tensor *t = &m->params.tensor[i];
        size_t n = spec_logical(&t->spec);
        float *x = mem_alloc(n, sizeof(float));
        double sum = 0;
        model_get_tensor(m, i, x);
        for (size_t k = 0; k < n; k++) {
            sum += (double)g->start[i][k] * (double)g->start[i][k];
            x[k] -= g->start[i][k];
        }
        compare(g, "change", t->name, x, n, golden_tensor(g, i), 2 * SKETCH, tol_change,
                0.1 * sqrt(sum));
        mem_free(x);
    }
}

static void train_step(Golden *g, Optimizer *o, int step, int micro) {
    Model *m = g->m;
    int n_targets = draw_batch(g, step);
    if (step == 0) compare_outputs(g, micro);
    model_step_begin(m);
    for (int b = 0; b < g->B; b += micro) {
        int at = b * g->T;
        model_step(m, g->ids + at, g->targets + at, n_targets, true, b + micro >= g->B, NULL, NULL);
    }
    if (step == 0) compare_gradients(g);
    StepState out;
    optim_step(o, step, number(list(g, "lr_factor"), step), &out);
    double loss = number(list(g, "losses"), step);
    char name[32];
    snprintf(name, sizeof name, "step %d", step);
    worst_add(&g->worst, fabs(out.loss_sum - loss), tol_loss * loss, "loss", name);
    if (step) return;
    double norm = field(g, "grad_norm");
    worst_add(&g->worst, fabs((double)out.grad_norm - norm), tol_gradient * norm, "norm",
              "all gradients");
}

// Runs a fixture and returns its worst share; a failure to set it up fails the test.
static Worst run(TestCtx *t, const char *fixture, Variation v) {
    Golden g = {0};
    Error err = {0};
    if (!load(&g, fixture, v.overrides, &err)) {
        test_fail(t, __FILE__, __LINE__, "%s %s: %s", fixture, v.overrides ? v.overrides : "",
                  err.text);
        destroy(&g);
        return g.worst;
    }
    set_threads(1);  // models this small only wait for each other's threads
    create(&g);
    int micro = v.micro_batch ? v.micro_batch : g.B;
    CHECK(t, cJSON_GetArraySize(list(&g, "tensors")) == g.m->params.n);
    CHECK(t, g.n_steps > 0 && g.B % micro == 0);
    model_alloc_acts(g.m, micro, g.T);
    Optimizer *o = optim_create(g.m);
    int step = 0;
    while (step < g.n_steps && !(v.enough > 0 && g.worst.share > v.enough))
        train_step(&g, o, step++, micro);
    if (step == g.n_steps) compare_changes(&g);
    optim_free(o);
    destroy(&g);
    return g.worst;
}

static void check(TestCtx *t, const char *fixture, Variation v) {
    Worst w = run(t, fixture, v);
    CHECK_MSG(t, w.share <= 1, "%s: %s is off by %.3g times the tolerance", fixture, w.where,
              w.share);
}

#define FIXTURES(X)                                                                                \
    X(mha_modern, "mha-modern")                                                                    \
    X(gqa_modern, "gqa-modern")                                                                    \
    X(mqa_modern, "mqa-modern")                                                                    \
    X(mla_modern, "mla-modern")                                                                    \
    X(lrkv_modern, "lrkv-modern")                                                                  \
    X(mha_gpt2, "mha-gpt2")                                                                        \
    X(gqa_gpt2, "gqa-gpt2")                                                                        \
    X(mqa_gpt2, "mqa-gpt2")                                                                        \
    X(mla_gpt2, "mla-gpt2")                                                                        \
    X(lrkv_gpt2, "lrkv-gpt2")                                                                      \
    X(mla_decoupled, "mla-decoupled")                                                              \
    X(mla_decoupled_bias, "mla-decoupled-bias")                                                    \
    X(mla_q_lora_swiglu_heads, "mla-q-lora-swiglu-heads")                                          \
    X(lrkv_swiglu_bias_heads, "lrkv-swiglu-bias-heads")                                            \
    X(lrkv_no_position, "lrkv-no-position")                                                        \
    X(lrkv_rank_0, "lrkv-rank-0")                                                                  \
    X(gqa_tied_softcap_heads, "gqa-tied-softcap-heads")                                            \
    X(mha_layernorm_no_weight, "mha-layernorm-no-weight")

#define AS_CASE(id, file)                                                                          \
    static void id##_is_the_fp64_model(TestCtx *t) {                                               \
        check(t, file, (Variation){0});                                                            \
    }
#define AS_ROW(id, file)  {#id "_is_the_fp64_model", id##_is_the_fp64_model},
#define AS_NAME(id, file) file,
FIXTURES(AS_CASE)

static const char *const fixtures[] = {FIXTURES(AS_NAME)};
enum { N_FIXTURES = sizeof fixtures / sizeof fixtures[0] };

static void every_fixture_is_compared(TestCtx *t) {
    DIR *dir = opendir(FIXTURE_DIR);
    CHECK_MSG(t, dir, "%s cannot be opened: run from the root of the tree", FIXTURE_DIR);
    if (!dir) return;
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        size_t n = strlen(entry->d_name);
        bool known = n < 5 || strcmp(entry->d_name + n - 5, ".json") != 0 ||
                     strncmp(entry->d_name, "stories", 7) == 0;
        for (int i = 0; i < N_FIXTURES; i++) {
            known |=
                strlen(fixtures[i]) + 5 == n && strncmp(entry->d_name, fixtures[i], n - 5) == 0;
        }
        CHECK_MSG(t, known, "%s/%s is compared by no case", FIXTURE_DIR, entry->d_name);
    }
    closedir(dir);
}

static void micro_batches_add_up_to_the_fp64_model(TestCtx *t) {
    check(t, "lrkv-swiglu-bias-heads", (Variation){.micro_batch = 1});
    check(t, "gqa-tied-softcap-heads", (Variation){.micro_batch = 1});
}

static void merged_lrkv_is_the_fp64_model(TestCtx *t) {
    for (int i = 0; i < N_FIXTURES; i++) {
        if (strncmp(fixtures[i], "lrkv", 4) != 0) continue;
        check(t, fixtures[i], (Variation){.overrides = "attention.path=merged"});
        check(t, fixtures[i], (Variation){.micro_batch = 1, .overrides = "attention.path=merged"});
    }
}

// bf16 operands round to 2^-9 and gradients pass through a dozen products: a few percent, not less.
static void bf16_products_stay_near_the_fp64_model(TestCtx *t) {
    for (int i = 0; i < N_FIXTURES; i++) {
        Worst w = run(t, fixtures[i], (Variation){.overrides = "train.compute=bf16", .enough = 2});
        double percent = 100 * tol_gradient * w.share;
        CHECK_MSG(t, percent > 0.1 && percent < 5, "%s: %s is off by %.3g %%", fixtures[i], w.where,
                  percent);
    }
}

// A setting that is off by little must show, or the comparison proves nothing about it.
static void a_setting_that_is_off_is_noticed(TestCtx *t) {
    static const struct {
        const char *fixture, *overrides;
    } rows[] = {
        {"lrkv-swiglu-bias-heads", "model.rope_theta=9900"},
        {"lrkv-swiglu-bias-heads", "model.norm_eps=1e-4"},
        {"gqa-tied-softcap-heads", "model.logit_softcap=4.02"},
        {"lrkv-swiglu-bias-heads", "model.qk_norm=false"},
        {"lrkv-swiglu-bias-heads", "model.embed_std=1.001"},
        {"lrkv-swiglu-bias-heads", "attention.residual_init_ratio=0.701"},
        {"lrkv-swiglu-bias-heads", "optim.muon_momentum=0.949"},
        {"lrkv-swiglu-bias-heads", "optim.muon_nesterov=false"},
        {"lrkv-swiglu-bias-heads", "optim.muon_steps=6"},
        {"lrkv-swiglu-bias-heads", "optim.muon_unit=matrix"},
        {"lrkv-swiglu-bias-heads", "optim.lr_width_scale=false"},
        {"lrkv-swiglu-bias-heads", "optim.matrix.lr=0.02002"},
        {"lrkv-swiglu-bias-heads", "optim.matrix.decay=0.11"},
        {"lrkv-swiglu-bias-heads", "optim.embed.lr=0.01001"},
        {"lrkv-swiglu-bias-heads", "optim.vector.beta2=0.949"},
        {"lrkv-swiglu-bias-heads", "optim.head.eps=1e-5"},
        {"lrkv-gpt2", "optim.grad_clip=0.99"},
        {"mha-modern", "model.activation=gelu"},
        {"mla-decoupled", "model.rope_theta=9900"},
        {"gqa-tied-softcap-heads", "model.norm=layernorm"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Variation v = {.overrides = rows[i].overrides, .enough = 2};
        Worst w = run(t, rows[i].fixture, v);
        CHECK_MSG(t, w.share > 2, "%s with %s looks right: the worst share is %.3g",
                  rows[i].fixture, rows[i].overrides, w.share);
    }
}

TEST_MAIN(FIXTURES(AS_ROW){"every_fixture_is_compared", every_fixture_is_compared},
          {"micro_batches_add_up_to_the_fp64_model", micro_batches_add_up_to_the_fp64_model},
          {"bf16_products_stay_near_the_fp64_model", bf16_products_stay_near_the_fp64_model},
          {"merged_lrkv_is_the_fp64_model", merged_lrkv_is_the_fp64_model},
          {"a_setting_that_is_off_is_noticed", a_setting_that_is_off_is_noticed})
