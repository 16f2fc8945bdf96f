// test_config_check.c - whole configs: combinations, printing, comparing, help, the project's
// files.
#include "gpt/config_table.h"
#include "test/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool one_sentence(const char *text) {
    return *text && !strchr(text, '\n') && strlen(text) < sizeof((Error *)0)->text - 1;
}

// Overrides separated by spaces on the defaults; NULL: they must pass, else the sentence has words.
static void finish(TestCtx *t, const char *overrides, const char *words) {
    Config c;
    Error err = {0};
    config_default(&c);
    char *text = str_copy(overrides), *rest = text;
    for (char *one; (one = rest) && *one;) {
        rest = strchr(one, ' ');
        if (rest) *rest++ = 0;
        CHECK_MSG(t, config_override(&c, one, &err), "%s", err.text);
    }
    bool ok = config_finish(&c, &err);
    if (!words)
        CHECK_MSG(t, ok, "%s: %s", overrides, err.text);
    else {
        CHECK_MSG(t, !ok, "%s was accepted", overrides);
        CHECK_ERROR(t, err, words);
        CHECK(t, one_sentence(err.text));
    }
    mem_free(text);
}

static void config_finish_checks_head_sizes(TestCtx *t) {
    finish(t, "model.n_embd=100 model.n_head=3",
           "model.n_embd 100 is not a multiple of model.n_head 3");
    finish(t, "model.n_embd=100 model.n_head=3 model.head_dim=32", NULL);
    finish(t, "model.n_embd=60 model.n_head=4", "model.head_dim is 15 but rotary positions");
    finish(t, "model.n_embd=60 model.n_head=4 model.position=learned", NULL);
    finish(t, "model.head_dim=1", "model.head_dim is 1 but rotary positions turn pairs");
    finish(t, "model.n_embd=4", "model.head_dim is 1 but rotary positions turn pairs");
    finish(t, "model.head_dim=1 model.position=none", NULL);
    finish(t, "model.n_embd=3", "model.n_embd 3 is not a multiple of model.n_head 4");
    finish(t, "model.n_head=1024 model.head_dim=1024", NULL);
}

static void config_finish_refuses_settings_without_effect(TestCtx *t) {
    finish(t, "attention.rank=8",
           "attention.rank is 8 but has an effect only with attention.type lrkv");
    finish(t, "attention.path=merged", "attention.path is merged but");
    finish(t, "attention.residual_init_ratio=0.2", "attention.residual_init_ratio is 0.2 but");
    finish(t, "attention.kv_lora_rank=8", "attention.kv_lora_rank is 8 but");
    finish(t, "attention.type=lrkv attention.rank=8 attention.v_head_dim=8",
           "attention.v_head_dim");
    finish(t, "model.position=learned model.rope_theta=500000", "model.rope_theta is 500000 but");
    finish(t, "schedule.decay_fraction=0.1", "schedule.decay_fraction is 0.1 but");
    finish(t, "schedule.kind=constant schedule.final_lr=0.1", "schedule.kind cosine|linear|wsd");
    finish(t, "schedule.kind=linear schedule.final_lr=0.1", NULL);
    finish(t, "attention.n_kv_head=2", "attention.n_kv_head is 2 but attention.type mha");
    finish(t, "attention.n_kv_head=4", NULL);
    finish(t, "attention.type=mqa attention.n_kv_head=4", "attention.n_kv_head is 4 but");
    finish(t, "attention.type=mqa attention.n_kv_head=1", NULL);
}

static void config_finish_checks_variants(TestCtx *t) {
    finish(t, "attention.type=gqa", "needs attention.n_kv_head");
    finish(t, "attention.type=gqa attention.n_kv_head=3",
           "attention.n_kv_head 3 does not divide model.n_head 4");
    finish(t, "attention.type=gqa attention.n_kv_head=2", NULL);
    finish(t, "attention.type=lrkv", "needs attention.rank");
    finish(t, "attention.type=gqa attention.n_kv_head=8",
           "attention.n_kv_head 8 does not divide model.n_head 4");
    finish(t, "attention.type=gqa attention.n_kv_head=1", NULL);
    finish(t, "attention.type=lrkv attention.rank=0", NULL);
    finish(t, "attention.type=lrkv attention.rank=64", NULL);
    finish(t, "attention.type=lrkv attention.rank=65",
           "attention.rank 65 is more than model.head_dim 64");
    finish(t, "attention.type=lrkv attention.rank=3 model.head_dim=2", "attention.rank 3 is more");
    finish(t, "attention.type=lrkv attention.rank=2 model.head_dim=15",
           "model.head_dim is 15 but rotary");
    finish(t, "attention.type=lrkv attention.rank=24 attention.path=merged", NULL);
    finish(t, "attention.type=mla", "needs attention.kv_lora_rank");
    finish(t, "attention.type=mla attention.kv_lora_rank=0", "needs attention.kv_lora_rank");
    finish(t, "attention.type=mla attention.kv_lora_rank=64", NULL);
    finish(t, "attention.type=mla attention.kv_lora_rank=1 attention.v_head_dim=1", NULL);
    finish(t, "attention.type=mla attention.kv_lora_rank=64 attention.qk_rope_head_dim=1",
           "attention.qk_rope_head_dim is 1 but rotary");
    finish(t, "attention.type=mla attention.kv_lora_rank=64 model.head_dim=15",
           "model.head_dim is 15 but rotary");
    finish(t,
           "attention.type=mla attention.kv_lora_rank=64 attention.qk_rope_head_dim=2 "
           "model.head_dim=15 attention.v_head_dim=7",
           NULL);
    finish(t, "attention.type=gqa attention.n_kv_head=2 attention.v_head_dim=8",
           "attention.v_head_dim is 8 but has an effect only with attention.type mla");
    finish(t, "attention.type=mla attention.kv_lora_rank=64 attention.qk_rope_head_dim=15",
           "attention.qk_rope_head_dim is 15 but rotary");
    finish(t,
           "attention.type=mla attention.kv_lora_rank=64 attention.qk_rope_head_dim=16 "
           "model.position=learned",
           "attention.qk_rope_head_dim is 16 but model.position is not rope");
}

static void config_finish_checks_batch_optimizer_and_schedule(TestCtx *t) {
    finish(t, "batch.tokens=1000", "nearest are 768 or 1024");
    finish(t, "batch.tokens=100", "nearest are 256");
    finish(t, "batch.tokens=8192 batch.micro_batch=3",
           "model.seq_len 256 times batch.micro_batch 3; the nearest are 7680 or 8448");
    finish(t, "batch.tokens=7680 batch.micro_batch=3", NULL);
    finish(t, "model.seq_len=1048576 batch.micro_batch=65536 batch.tokens=1099511627776",
           "tokens at once");
    finish(t, "train.steps=9007199254740991 batch.tokens=1048576",
           "more tokens than can be counted");
    finish(t, "optim.embed.optimizer=muon", "optim.embed.optimizer is muon");
    finish(t, "optim.vector.optimizer=muon", "optim.vector.optimizer is muon");
    finish(t, "optim.matrix.optimizer=adamw", NULL);
    finish(t, "train.steps=50", "schedule.warmup_steps 100 is more than train.steps 50");
    finish(t, "train.steps=100", NULL);
    finish(t, "train.steps=110 schedule.kind=wsd", "schedule.decay_fraction");
    finish(t, "train.steps=1 schedule.warmup_steps=0", NULL);
}

// A config in which no setting that is in use stands at its default.
static void unusual(Config *c, const char *type) {
    config_default(c);
    snprintf(c->attention.type, sizeof c->attention.type, "%s", type);
    c->schedule.kind = SCHEDULE_WSD;
    for (int i = 0; i < config_table_n; i++) {
        const Setting *s = &config_table[i];
        if (!setting_in_use(s, c)) continue;
        double x = setting_is_text(s) ? 0 : setting_number(s, c);
        if (s->type == SETTING_TEXT)
            snprintf(memset((char *)c + s->offset, 0, s->size), s->size, "\"%d\\\t\xc3\xa9", i);
        else if (s->type == SETTING_BOOL)
            setting_store(s, c, x == 0);
        else if (s->type == SETTING_INT)
            setting_store(s, c, x + 1);
        else if (s->type == SETTING_I64)
            setting_store(s, c, s->max - i);
        else if (s->type == SETTING_F64)
            setting_store(s, c, x + (s->max - x) / (i + 3));
    }
}

static void config_print_reads_back_exactly(TestCtx *t) {
    static const char *const types[] = {"mha", "gqa", "mla", "lrkv"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        Config a, b;
        Error err = {0};
        unusual(&a, types[i]);
        char *json = config_print(&a);
        CHECK_MSG(t, config_parse(&b, json, "printed", &err), "%s\n%s", err.text, json);
        CHECK_SAME_BITS(t, &a, &b, sizeof a);
        char *again = config_print(&b);
        CHECK(t, strcmp(json, again) == 0);
        mem_free(json);
        mem_free(again);
    }
}

static void config_print_has_no_other_variants_sizes(TestCtx *t) {
    Config c;
    config_default(&c);
    char *json = config_print(&c);
    CHECK(t, strstr(json, "\"type\": \"mha\"") && !strstr(json, "rank"));
    CHECK(t, strstr(json, "\"tokens\": 8192") && strstr(json, "\"norm_eps\": 1e-06"));
    c.attention.rank = 5;
    char *odd = config_print(&c);
    CHECK_MSG(t, strstr(odd, "\"rank\": 5"), "a setting that was set is missing: %s", odd);
    mem_free(json);
    mem_free(odd);
}

static void buf_number_writes_the_fewest_digits_that_read_back(TestCtx *t) {
    static const double x[] = {0.1, 1e-6, 1.0 / 3, 5e-324, 1.7976931348623157e308, 0.02, 1e22};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        Buf b = {0};
        buf_number(&b, x[i]);
        CHECK_MSG(t, strtod(b.text, NULL) == x[i], "%s", b.text);
        buf_free(&b);
    }
    Buf b = {0};
    buf_number(&b, 0.1);
    CHECK(t, strcmp(b.text, "0.1") == 0);
    buf_free(&b);
}

static void config_diff_names_what_must_not_change(TestCtx *t) {
    Config a, b;
    config_default(&a);
    b = a;
    Buf out = {0};
    CHECK(t, config_diff(&a, &b, &out) == 0 && config_diff_free(&a, &b, &out) == 0);
    b.model.n_layer = 3, b.optim.group[KIND_MATRIX].optimizer = OPTIM_ADAMW;
    b.train.steps = 2000, b.optim.group[KIND_MATRIX].lr = 0.5;
    CHECK(t, config_diff(&a, &b, &out) == 2);
    CHECK_MSG(t,
              strcmp(out.text, "model.n_layer 4 -> 3, optim.matrix.optimizer muon -> adamw") == 0,
              "%s", out.text);
    out.n = 0;
    CHECK(t, config_diff_free(&a, &b, &out) == 2);
    CHECK_MSG(t, strcmp(out.text, "optim.matrix.lr 0.02 -> 0.5, train.steps 1000 -> 2000") == 0,
              "%s", out.text);
    buf_free(&out);
}

static void config_help_prints_rows_of_a_section(TestCtx *t) {
    FILE *f = tmpfile();
    char text[60000] = {0};
    Error err;
    CHECK(t, config_help(f, NULL, &err) && config_help(f, "optim.matrix", &err));
    CHECK(t, config_help(f, "log.every", &err));
    CHECK(t, !config_help(f, "nothing", &err) && strstr(err.text, "the config has model, "));
    CHECK(t, !config_help(f, "modl", &err) && strstr(err.text, "did you mean model?"));
    rewind(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    CHECK(t, n > 1000);
    for (int i = 0; i < config_table_n; i++)
        CHECK_MSG(t, strstr(text, config_table[i].key), "%s has no help", config_table[i].key);
    CHECK(t, strstr(text, "model.norm = rmsnorm") && strstr(text, "one of rmsnorm, layernorm"));
    for (int i = 0; attention_table[i]; i++)
        CHECK(t, strstr(text, attention_table[i]->summary));
}

static void config_attn_dims_follow_the_settings(TestCtx *t) {
    Config c;
    Error err = {0};
    config_default(&c);
    CHECK(t, config_finish(&c, &err));
    AttnDims d = config_attn_dims(&c, 2, 16, 32);
    CHECK(t, d.B == 2 && d.T == 16 && d.Tmax == 32 && d.C == 256 && d.NH == 4 && d.NKV == 4);
    CHECK(t, d.HS == 64 && d.HV == 64 && d.R == 0 && d.std_out == 0 && d.qk_norm && !d.bias);
    CHECK(t, !d.any_order);
    c.train.deterministic = false;
    CHECK(t, config_attn_dims(&c, 1, 1, 1).any_order);
    c.model.zero_init_proj = false;
    d = config_attn_dims(&c, 1, 1, 1);
    CHECK(t, fabs((double)d.std_out - 1 / sqrt(256.0 * 2 * 4)) < 1e-9);
    c.model.init_std = 0.02;
    CHECK(t, fabs((double)config_proj_std(&c, 1024) - 0.02 / sqrt(8)) < 1e-9);
    snprintf(c.attention.type, sizeof c.attention.type, "mqa");
    CHECK(t, config_attn_dims(&c, 1, 1, 1).NKV == 1);
    snprintf(c.attention.type, sizeof c.attention.type, "gqa");
    c.attention.n_kv_head = 2;
    CHECK(t, config_attn_dims(&c, 1, 1, 1).NKV == 2);
    c.model.vocab_size = 50257;
    CHECK(t, config_padded_vocab(&c) == 50304);
    c.model.vocab_size = 128;
    CHECK(t, config_padded_vocab(&c) == 128);
    c.model.vocab_size = 129;
    CHECK(t, config_padded_vocab(&c) == 256);
    config_reset(&c, "attention");
    CHECK(t, strcmp(c.attention.type, "mha") == 0 && !c.attention.n_kv_head);
    CHECK(t, c.model.init_std == 0.02);
}

static void config_micro_batch_divides_the_step(TestCtx *t) {
    Config c;
    config_default(&c);  // 32 sequences of 256
    CHECK(t, config_micro_batch(&c, 1) == 32 && config_micro_batch(&c, 4) == 8);
    CHECK(t, config_micro_batch(&c, 3) == 0);
    c.batch.tokens = 66 * 256;  // at most 32 at once: 22, the largest divisor of 66 below it
    CHECK(t, config_micro_batch(&c, 1) == 22 && config_micro_batch(&c, 3) == 22);
    c.model.seq_len = 16384, c.batch.tokens = 2 * 16384;
    CHECK(t, config_micro_batch(&c, 1) == 1);
    c.batch.micro_batch = 2;
    CHECK(t, config_micro_batch(&c, 1) == 2);
}

// Every file of configs/ passes, and the recipes say what the table's defaults say.
static void config_files_of_the_project_are_valid(TestCtx *t) {
    static const char *const names[] = {
        "demo",     "modern",   "gpt2",      "gpt2-124m",          "128m", "128m-mha", "128m-gqa",
        "128m-mqa", "128m-mla", "128m-lrkv", "128m-mla-decoupled", "2.5b", "2.5b-mha", "2.5b-gqa",
        "2.5b-mqa", "2.5b-mla", "2.5b-lrkv"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[64];
        snprintf(path, sizeof path, "configs/%s.json", names[i]);
        Config c, initial;
        Error err = {0};
        CHECK_MSG(t, config_load(&c, path, &err), "%s", err.text);
        if (strcmp(names[i], "modern") == 0) {
            config_default(&initial);
            Buf differ = {0};
            int n = config_diff(&initial, &c, &differ) + config_diff_free(&initial, &c, &differ);
            CHECK_MSG(t, n == 0, "%s: %s", path, differ.text);
            buf_free(&differ);
        }
        CHECK_MSG(t, config_finish(&c, &err), "%s: %s", path, err.text);
        if (strncmp(names[i], "128m", 4) == 0)
            CHECK(t, llabs((long long)(c.train.steps * c.batch.tokens) - 100000000000) < 524288);
        if (strncmp(names[i], "2.5b", 4) == 0)
            CHECK(t, llabs((long long)(c.train.steps * c.batch.tokens) - 50000000000) < 524288);
    }
}

TEST_MAIN({"config_finish_checks_head_sizes", config_finish_checks_head_sizes},
          {"config_finish_refuses_settings_without_effect",
           config_finish_refuses_settings_without_effect},
          {"config_finish_checks_variants", config_finish_checks_variants},
          {"config_finish_checks_batch_optimizer_and_schedule",
           config_finish_checks_batch_optimizer_and_schedule},
          {"config_print_reads_back_exactly", config_print_reads_back_exactly},
          {"config_print_has_no_other_variants_sizes", config_print_has_no_other_variants_sizes},
          {"buf_number_writes_the_fewest_digits_that_read_back",
           buf_number_writes_the_fewest_digits_that_read_back},
          {"config_diff_names_what_must_not_change", config_diff_names_what_must_not_change},
          {"config_help_prints_rows_of_a_section", config_help_prints_rows_of_a_section},
          {"config_attn_dims_follow_the_settings", config_attn_dims_follow_the_settings},
          {"config_micro_batch_divides_the_step", config_micro_batch_divides_the_step},
          {"config_files_of_the_project_are_valid", config_files_of_the_project_are_valid})
