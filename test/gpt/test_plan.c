// test_plan.c - plan's numbers against closed formulas, the paper's table and what is allocated.
#include "gpt/model.h"
#include "gpt/optim.h"
#include "gpt/plan.h"
#include "test/test.h"

#include <cjson/cJSON.h>

#include <math.h>
#include <string.h>

// Counting needs two entries of an op table: plan must not call any other.
static size_t no_packed_copy(int OC, int IC, ElemType compute) {
    (void)OC, (void)IC, (void)compute;
    return 0;
}
static const Ops fp32_ops = {
    .name = "counting", .isa = "none", .elem_size = 4, .weight_bytes = no_packed_copy};
static const Ops bf16_ops = {
    .name = "counting", .isa = "none", .elem_size = 2, .weight_bytes = no_packed_copy};

// A config file with overrides up to NULL.
static Config config_of(TestCtx *t, const char *path, const char *const *overrides) {
    Config c;
    Error err = {0};
    config_default(&c);
    if (path) CHECK_MSG(t, config_load(&c, path, &err), "%s", err.text);
    for (; overrides && *overrides; overrides++)
        CHECK_MSG(t, config_override(&c, *overrides, &err), "%s", err.text);
    CHECK_MSG(t, config_finish(&c, &err), "%s", err.text);
    return c;
}

static Plan plan_of(TestCtx *t, const Config *c, const Ops *ops) {
    Plan p;
    Error err = {0};
    CHECK_MSG(t, plan_compute(&p, c, ops, 1, 0, &err), "%s", err.text);
    return p;
}

static void plan_counts_the_papers_parameters_and_cache_values(TestCtx *t) {
    static const struct {
        const char *config;
        double millions, unit;  // printed to a multiple of unit
        size_t values;
    } cases[] = {
        {"128m-mha", 162.2, 0.1, 1536}, {"128m-gqa", 155.1, 0.1, 768},
        {"128m-mqa", 150.4, 0.1, 256},  {"128m-mla", 151.6, 0.1, 128},
        {"128m-lrkv", 156.3, 0.1, 808}, {"2.5b-mha", 2525, 1, 4608},
        {"2.5b-gqa", 2270, 1, 1536},    {"2.5b-mqa", 2164, 1, 256},
        {"2.5b-mla", 2238, 1, 384},     {"2.5b-lrkv", 2337, 1, 2236},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char path[64];
        snprintf(path, sizeof path, "configs/%s.json", cases[i].config);
        Config c = config_of(t, path, NULL);
        Plan p = plan_of(t, &c, &fp32_ops);
        double found = (double)p.parameters / 1e6;
        CHECK_MSG(t, fabs(found - cases[i].millions) <= cases[i].unit / 2, "%s: %.3f M", path,
                  found);
        CHECK_MSG(t, p.cache.values == cases[i].values, "%s: %zu values", path, p.cache.values);
        // Two tables of 47 padded rows beyond the 50257 of the tokenizer.
        CHECK(t, p.parameters - p.unpadded == (size_t)2 * 47 * (size_t)c.model.n_embd);
        CHECK(t, p.parameters - p.non_embedding == (size_t)2 * 50304 * (size_t)c.model.n_embd);
        CHECK(t, p.in_products == p.non_embedding + (size_t)50304 * (size_t)c.model.n_embd);
        size_t bytes = cases[i].values * 2 * 2048 * (size_t)c.model.n_layer;
        CHECK_MSG(t, p.cache.sequence_bytes == bytes, "%s: %zu bytes", path,
                  p.cache.sequence_bytes);
        // 2048 positions are whole blocks, so that nothing is lost to rounding.
        CHECK_MSG(t, p.cache.sequence_allocated == bytes, "%s: %zu allocated, %zu expected", path,
                  p.cache.sequence_allocated, bytes);
        plan_free(&p);
    }
}

static void plan_counts_lrkv_exactly(TestCtx *t) {
    Config c = config_of(t, "configs/128m-lrkv.json", NULL);
    Plan p = plan_of(t, &c, &fp32_ops);
    size_t d = 768, hs = 128, H = 6, r = 46;
    size_t layer = 2 * d * d + 2 * d * hs + 2 * H * r * (d + hs) + 2 * d * 4 * d;
    CHECK_MSG(t, p.parameters == 12 * layer + 2 * 50304 * d, "%zu", p.parameters);
    plan_free(&p);
}

static void plan_counts_flops_by_both_conventions(TestCtx *t) {
    const char *const overrides[] = {"model.seq_len=1024", NULL};
    Config c = config_of(t, "configs/128m-mha.json", overrides);
    Plan p = plan_of(t, &c, &fp32_ops);
    double L = 12, C = 768, T = 1024, N = L * 12 * C * C + 50304 * C;
    CHECK(t, (double)p.in_products == N);
    CHECK_MSG(t, p.flops.causal == 6 * N + 6 * L * C * T, "%.0f", p.flops.causal);
    CHECK_MSG(t, p.flops.full == 6 * N + 12 * L * C * T, "%.0f", p.flops.full);
    CHECK(t, fabs(p.flops.causal / 1e6 - 798) < 0.5);
    // Backward computes the scores again: 14 instead of 12 products of C x T/2, T + 1 keys.
    CHECK(t, p.flops.executed == 6 * N + 14 * L * C * (T + 1) / 2);
    // Muon, 5 iterations of 4 m^2 n + 2 m^3: wq, wk, wv, wo are square, the MLP's are 4C x C.
    double square = 6 * C * C * C, wide = 18 * C * C * C,
           head = 4 * 128 * 128 * C + 2 * 128.0 * 128 * 128;
    CHECK_MSG(t, p.flops.optimizer_step == 5 * L * (4 * square + 2 * wide), "%.0f",
              p.flops.optimizer_step);
    plan_free(&p);
    c.optim.muon_unit = MUON_HEAD;  // six blocks of 128 rows in wq, wk, wv
    p = plan_of(t, &c, &fp32_ops);
    CHECK_MSG(t, p.flops.optimizer_step == 5 * L * (18 * head + square + 2 * wide), "%.0f",
              p.flops.optimizer_step);
    plan_free(&p);
}

static void plan_counts_merged_lrkv_by_what_it_executes(TestCtx *t) {
    const char *const factored[] = {"optim.matrix.optimizer=adamw", NULL};
    const char *const merged[] = {"attention.path=merged", "optim.matrix.optimizer=adamw", NULL};
    Config a = config_of(t, "configs/128m-lrkv.json", factored);
    Config b = config_of(t, "configs/128m-lrkv.json", merged);
    Plan p = plan_of(t, &a, &fp32_ops), q = plan_of(t, &b, &fp32_ops);
    double L = 12, C = 768, T = 2048, HS = 128, H = 6, r8 = 48;
    double core = 14 * L * C * (T + 1) / 2, rest = L * 10 * C * C + 50304 * C;
    double factors = 2 * C * HS + 2 * H * r8 * (C + HS);
    CHECK_MSG(t, p.flops.executed == 6 * (rest + L * factors) + core, "%.0f", p.flops.executed);
    CHECK(t, p.flops.optimizer_step == 0);
    CHECK_MSG(t, q.flops.executed == 6 * (rest + L * 2 * C * C) + core, "%.0f", q.flops.executed);
    CHECK_MSG(t, q.flops.optimizer_step == 6 * L * 2 * C * C * r8, "%.0f", q.flops.optimizer_step);
    CHECK(t, p.flops.causal == q.flops.causal && p.parameters == q.parameters);
    CHECK(t, p.bytes.derived == 0 && q.bytes.derived == 12 * 2 * 768 * 768 * 8);
    plan_free(&p);
    plan_free(&q);
}

static void plan_counts_decoupled_mla_keys(TestCtx *t) {
    const char *const overrides[] = {"attention.qk_rope_head_dim=64", NULL};
    Config c = config_of(t, "configs/128m-mla.json", overrides);
    Plan p = plan_of(t, &c, &fp32_ops);
    CHECK_MSG(t, fabs((double)p.non_embedding / 1e6 - 78.45) < 0.01, "%zu", p.non_embedding);
    CHECK(t, p.cache.values == 128 + 64);
    double N = (double)p.in_products, keys = 128 + 64, values = 128;
    CHECK(t, p.flops.causal == 6 * N + 3.0 * 12 * 6 * (keys + values) * 2048);
    plan_free(&p);
}

// Llama 2: the counts are public, 6738415616, 13015864320 and 68976648192.
static void plan_counts_7b_13b_and_70b_without_allocating_them(TestCtx *t) {
    static const struct {
        int64_t layers, width, heads, kv, ffn;
        size_t parameters;
    } big[] = {{32, 4096, 32, 32, 11008, 6738415616},
               {40, 5120, 40, 40, 13824, 13015864320},
               {80, 8192, 64, 8, 28672, 68976648192}};
    size_t rss = peak_rss_bytes();
    for (size_t i = 0; i < sizeof big / sizeof big[0]; i++) {
        Config c;
        Error err = {0};
        const char *text =
            "{\"model\": {\"n_layer\": %d, \"n_embd\": %d, \"n_head\": %d, \"ffn_dim\": %d,"
            " \"vocab_size\": 32000, \"seq_len\": 4096, \"norm_weight\": true,"
            " \"embed_norm\": false, \"activation\": \"swiglu\"},"
            " \"attention\": {\"type\": \"gqa\", \"n_kv_head\": %d},"
            " \"optim\": {\"matrix\": {\"optimizer\": \"adamw\"}},"
            " \"batch\": {\"tokens\": 4194304}, \"generate\": {\"kv_type\": \"bf16\"}}";
        Buf json = {0};
        buf_printf(&json, text, (int)big[i].layers, (int)big[i].width, (int)big[i].heads,
                   (int)big[i].ffn, (int)big[i].kv);
        CHECK_MSG(t, config_parse(&c, json.text, "big", &err), "%s", err.text);
        CHECK_MSG(t, config_finish(&c, &err), "%s", err.text);
        Plan p = plan_of(t, &c, &fp32_ops), q = plan_of(t, &c, &bf16_ops);
        size_t n = big[i].parameters, cache = (size_t)(2 * big[i].kv * 128 * 2 * 4096);
        CHECK_MSG(t, p.parameters == n && p.unpadded == n, "%zu", p.parameters);
        CHECK(t, p.bytes.parameters == 4 * n && p.bytes.gradients == 4 * n);
        CHECK_MSG(t, p.bytes.optimizer == 8 * n, "%zu", p.bytes.optimizer);
        // bf16 parameters with fp32 masters beside the moments; gains stay fp32 and are masters.
        size_t gains = (size_t)(big[i].width * (2 * big[i].layers + 1));
        CHECK_MSG(t, q.bytes.parameters == 2 * n + 2 * gains, "%zu", q.bytes.parameters);
        CHECK(t, q.bytes.gradients == 4 * n);
        CHECK_MSG(t, q.bytes.optimizer == 12 * n - 4 * gains, "%zu", q.bytes.optimizer);
        CHECK(t, p.cache.sequence_bytes == cache * (size_t)big[i].layers);
        CHECK(t, p.bytes.total > 16 * n && p.micro_batch == 2 && p.micro_steps == 512);
        buf_free(&json);
        plan_free(&p);
        plan_free(&q);
    }
    CHECK(t, peak_rss_bytes() - rss < (size_t)32 << 20);
}

static void plan_bytes_are_what_a_model_allocates(TestCtx *t) {
    static const char *const variants[][4] = {
        {"attention.type=mha"},
        {"attention.type=gqa", "attention.n_kv_head=2"},
        {"attention.type=mla", "attention.kv_lora_rank=24"},
        {"attention.type=lrkv", "attention.rank=5"},
        {"attention.type=lrkv", "attention.rank=5", "attention.path=merged"},
    };
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        Config c = config_of(t, NULL, variants[i]);
        Error err = {0};
        c.model.n_layer = 2, c.model.seq_len = 32, c.model.vocab_size = 300;
        c.batch.tokens = 256, c.batch.micro_batch = 2;
        CHECK_MSG(t, config_finish(&c, &err), "%s", err.text);
        const Ops *ops = ops_cpu();
        Plan p = plan_of(t, &c, ops);
        Model *m = model_create(&c, ops, true);
        CHECK(t, p.bytes.parameters == m->params.bytes);
        CHECK(t, p.bytes.gradients == m->params.elements * sizeof(float));
        CHECK(t, p.bytes.prepared == m->packed_bytes && p.bytes.derived == m->derived_bytes);
        size_t rope = (size_t)m->rope_rows * 64 * sizeof(float), ids = 2 * 256 * sizeof(int);
        CHECK_MSG(t, p.bytes.tables == rope + ids, "%zu", p.bytes.tables);
        model_free(m);
        m = model_create(&c, ops, false);
        Cache *cache = cache_create(m, 1, 32, 8);
        CHECK(t, p.cache.sequence_allocated == cache->bytes);
        size_t all = m->params.bytes + m->packed_bytes + m->derived_bytes + cache->bytes + rope;
        CHECK_MSG(t, p.generate_bytes == all, "%s %zu, %zu expected", variants[i][0],
                  p.generate_bytes, all);
        cache_free(m, cache);
        model_free(m);
        plan_free(&p);
    }
}

static void plan_divides_the_step_over_ranks(TestCtx *t) {
    Config c = config_of(t, "configs/2.5b-lrkv.json", NULL);
    Plan p;
    Error err = {0};
    CHECK(t, plan_compute(&p, &c, &fp32_ops, 8, 1e6, &err));
    CHECK(t, p.micro_batch == 4 && p.micro_steps == 8 && p.ranks == 8);
    CHECK(t, p.tokens == (int64_t)95367 * 524288);
    CHECK(t, fabs(p.seconds - 95367 * 0.524288) < 1e-3);
    plan_free(&p);
    CHECK(t, !plan_compute(&p, &c, &fp32_ops, 3, 0, &err));
    CHECK_ERROR(t, err, "256 sequences of model.seq_len 2048, which 3 ranks");
    c.batch.micro_batch = 64;
    CHECK(t, !plan_compute(&p, &c, &fp32_ops, 8, 0, &err));
    CHECK_ERROR(t, err, "batch.micro_batch 64");
}

static double json_number(TestCtx *t, const cJSON *root, const char *object, const char *key) {
    const cJSON *from = object ? cJSON_GetObjectItem(root, object) : root;
    const cJSON *n = cJSON_GetObjectItem(from, key);
    CHECK_MSG(t, cJSON_IsNumber(n), "%s %s is missing", object ? object : "", key);
    return cJSON_IsNumber(n) ? n->valuedouble : NAN;
}

static void plan_json_holds_the_numbers(TestCtx *t) {
    Config c = config_of(t, "configs/128m-lrkv.json", NULL);
    Plan p = plan_of(t, &c, &fp32_ops);
    char *text = plan_json(&p);
    cJSON *root = cJSON_Parse(text);
    CHECK_MSG(t, root, "not JSON: %s", text);
    CHECK(t, json_number(t, root, NULL, "parameters") == (double)p.parameters);
    CHECK(t, json_number(t, root, "flops", "token_causal") == p.flops.causal);
    CHECK(t, json_number(t, root, "bytes", "total") == (double)p.bytes.total);
    CHECK(t, json_number(t, root, "cache", "values_per_token_layer") == 808);
    CHECK(t, json_number(t, root, "training", "tokens") == (double)p.tokens);
    cJSON_Delete(root);
    mem_free(text);
    plan_free(&p);
}

static void plan_print_shows_them_to_people(TestCtx *t) {
    Config c = config_of(t, "configs/128m-lrkv.json", NULL);
    Plan p = plan_of(t, &c, &fp32_ops);
    FILE *f = tmpfile();
    char text[20000] = {0};
    plan_print(f, &p, true);
    rewind(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    CHECK(t, n > 500);
    static const char *const words[] = {"156.3 M = ",   "vocabulary 50257 (50304 padded)",
                                        "808 values",   "52.6 % of mha), 1616 bytes in bf16",
                                        "190735 steps", "h.11.mlp.c_proj",
                                        "muon",         "50257 x 768  stored 50304 x 768"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        CHECK_MSG(t, strstr(text, words[i]), "'%s' is missing:\n%s", words[i], text);
    plan_free(&p);
}

TEST_MAIN({"plan_counts_the_papers_parameters_and_cache_values",
           plan_counts_the_papers_parameters_and_cache_values},
          {"plan_counts_lrkv_exactly", plan_counts_lrkv_exactly},
          {"plan_counts_flops_by_both_conventions", plan_counts_flops_by_both_conventions},
          {"plan_counts_merged_lrkv_by_what_it_executes",
           plan_counts_merged_lrkv_by_what_it_executes},
          {"plan_counts_decoupled_mla_keys", plan_counts_decoupled_mla_keys},
          {"plan_counts_7b_13b_and_70b_without_allocating_them",
           plan_counts_7b_13b_and_70b_without_allocating_them},
          {"plan_bytes_are_what_a_model_allocates", plan_bytes_are_what_a_model_allocates},
          {"plan_divides_the_step_over_ranks", plan_divides_the_step_over_ranks},
          {"plan_json_holds_the_numbers", plan_json_holds_the_numbers},
          {"plan_print_shows_them_to_people", plan_print_shows_them_to_people})
