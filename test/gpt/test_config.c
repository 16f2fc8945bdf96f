// test_config.c - the settings table: reading, refusing and overriding single settings.
#include "gpt/config_table.h"
#include "test/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// A file in dir, contents given; the path is the caller's.
static char *put(const char *dir, const char *name, const char *text) {
    char *path = path_join(dir, name);
    Error err = {0};
    if (!file_write_atomic(path, text, strlen(text), &err)) die("%s", err.text);
    return path;
}

static bool one_sentence(const char *text) {
    return *text && !strchr(text, '\n') && strlen(text) < sizeof((Error *)0)->text - 1;
}

// The JSON text is refused with a sentence that holds the place and the words.
static void refused(TestCtx *t, const char *json, const char *words) {
    Config c, before;
    config_default(&c);
    before = c;
    Error err = {0};
    bool ok = config_parse(&c, json, "here.json", &err);
    CHECK_MSG(t, !ok, "accepted %.60s", json);
    CHECK_MSG(t, strstr(err.text, "here.json") && strstr(err.text, words),
              "%.60s: expected 'here.json' and '%s', found '%s'", json, words, err.text);
    CHECK_MSG(t, one_sentence(err.text), "not one sentence: %s", err.text);
    CHECK_MSG(t, memcmp(&c, &before, sizeof c) == 0, "%.60s: the config was changed", json);
}

static void config_defaults_are_a_valid_config(TestCtx *t) {
    Config c;
    Error err = {0};
    config_default(&c);
    CHECK_MSG(t, config_finish(&c, &err), "%s", err.text);
    CHECK(t, c.model.head_dim == 64 && c.model.ffn_dim == 1024);
    Config again = c;
    CHECK(t, config_finish(&again, &err) && memcmp(&c, &again, sizeof c) == 0);
}

static void config_table_rows_are_sound(TestCtx *t) {
    for (int i = 0; i < config_table_n; i++) {
        const Setting *s = &config_table[i];
        CHECK_MSG(t, setting_find(s->key) == s, "%s has two rows", s->key);
        CHECK_MSG(t, strlen(s->key) < 60 && s->help && *s->help, "%s", s->key);
        CHECK_MSG(t, !s->needs_key || setting_find(s->needs_key), "%s", s->key);
        CHECK_MSG(t, s->type != SETTING_WORD || s->words, "%s has no words", s->key);
        CHECK_MSG(t, !setting_is_text(s) || s->initial_text, "%s has no default", s->key);
        Config c;
        Error err = {0};
        config_default(&c);
        if (s->type == SETTING_INT || s->type == SETTING_I64 || s->type == SETTING_F64)
            CHECK_MSG(t, setting_set_number(s, &c, s->initial, "", &err), "%s", err.text);
        // No two rows share memory: writing one setting changes no other.
        Config other;
        config_default(&other);
        if (s->type == SETTING_VARIANT)
            snprintf(other.attention.type, 16, "mqa");
        else if (s->type == SETTING_TEXT)
            ((char *)&other)[s->offset] = 'x';
        else
            setting_store(s, &other, s->initial != 0 ? 0 : 1);
        for (int k = 0; k < config_table_n; k++)
            CHECK_MSG(t, setting_equal(&config_table[k], &c, &other) == (k != i), "%s and %s",
                      s->key, config_table[k].key);
    }
}

static void config_parse_reads_every_type(TestCtx *t) {
    Config c;
    Error err = {0};
    const char *json = "{\"model\": {\"n_layer\": 7, \"norm\": \"layernorm\", \"bias\": true},"
                       " \"attention\": {\"type\": \"gqa\", \"n_kv_head\": 2},"
                       " \"data\": {\"train\": \"a \\\"b\\\" \\u00e9\"},"
                       " \"batch\": {\"tokens\": 1099511627776},"
                       " \"optim\": {\"matrix\": {\"lr\": 1e-3}},"
                       " \"train\": {\"seed\": 9007199254740991, \"compute\": \"bf16\"}}";
    CHECK_MSG(t, config_parse(&c, json, "x", &err), "%s", err.text);
    CHECK(t, c.model.n_layer == 7 && c.model.norm == NORM_LAYER && c.model.bias);
    CHECK(t, strcmp(c.attention.type, "gqa") == 0 && c.attention.n_kv_head == 2);
    CHECK(t, strcmp(c.data.train, "a \"b\" \xc3\xa9") == 0);
    CHECK(t, c.batch.tokens == (int64_t)1 << 40);
    CHECK(t, c.optim.group[KIND_MATRIX].lr == 1e-3 && c.optim.group[KIND_HEAD].lr == 0.004);
    CHECK(t, c.train.seed == 9007199254740991 && c.train.compute == TYPE_BF16);
    CHECK(t, c.model.n_head == 4);
}

static void config_parse_refuses_unknown_keys_naming_the_nearest(TestCtx *t) {
    refused(t, "{\"model\": {\"n_layr\": 3}}",
            "unknown setting model.n_layr; did you mean model.n_layer?");
    refused(t, "{\"modle\": {}}", "unknown setting modle; did you mean model?");
    refused(t, "{\"optim\": {\"matrx\": {\"lr\": 1}}}", "did you mean optim.matrix");
    refused(t, "{\"optim\": {\"matrix\": {\"lrr\": 1}}}", "did you mean optim.matrix.lr?");
    refused(t, "{\"model\": {\"rank\": 3}}", "did you mean attention.rank?");
    refused(t, "{\"log\": {\"zzzzzzzzz\": 3}}", "unknown setting log.zzzzzzzzz; log has every");
    refused(t, "{\"model.n_layer\": 3}", "'model.n_layer' has a dot");
    refused(t, "{\"\": 3}", "unknown setting");
    refused(t, "{\"base\": \"x.json\"}", "base is allowed only in config files");
}

static void config_parse_refuses_wrong_types_with_expected_and_found(TestCtx *t) {
    refused(t, "{\"model\": {\"n_layer\": \"4\"}}",
            "model.n_layer should be an integer from 1 to 1024, found '4'");
    refused(t, "{\"model\": {\"n_layer\": true}}", "found true");
    refused(t, "{\"model\": {\"n_layer\": null}}", "found null");
    refused(t, "{\"model\": {\"n_layer\": [4]}}", "found a list");
    refused(t, "{\"model\": {\"n_layer\": {}}}", "found an object");
    refused(t, "{\"model\": {\"bias\": 1}}", "model.bias should be true or false, found 1");
    refused(t, "{\"model\": {\"bias\": \"true\"}}", "found 'true'");
    refused(t, "{\"model\": {\"norm\": 1}}",
            "model.norm should be one of rmsnorm, layernorm, found 1");
    refused(t, "{\"model\": {\"norm\": \"rms\"}}", "one of rmsnorm, layernorm, found 'rms'");
    refused(t, "{\"attention\": {\"type\": \"mhaa\"}}",
            "attention.type should be one of mha, mqa, gqa, mla, lrkv, found 'mhaa'");
    refused(t, "{\"data\": {\"train\": 3}}", "data.train should be a text of at most 511 bytes");
    refused(t, "{\"model\": 3}", "model should be an object");
    refused(t, "{\"optim\": {\"matrix\": 3}}", "optim.matrix should be an object");
    refused(t, "[1]", "should be a JSON object");
    refused(t, "3", "should be a JSON object");
}

static void config_parse_refuses_numbers_out_of_range(TestCtx *t) {
    static const char *const sizes[] = {
        "0",   "-1",    "2147483648", "4294967297", "4398046511105", "4611686018427387904",
        "2.5", "1e999", "-1e999"};
    static const char *const keys[] = {"n_layer", "n_embd", "n_head", "vocab_size", "seq_len"};
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            char json[100], words[60];
            snprintf(json, sizeof json, "{\"model\": {\"%s\": %s}}", keys[k], sizes[i]);
            snprintf(words, sizeof words, "model.%s should be an integer from 1 to", keys[k]);
            refused(t, json, words);
        }
    }
    refused(t, "{\"train\": {\"seed\": 9007199254740993}}", "train.seed should be");
    refused(t, "{\"optim\": {\"matrix\": {\"lr\": -0.1}}}", "a number from 0 to 100, found -0.1");
    refused(t, "{\"optim\": {\"head\": {\"beta2\": 1}}}", "at least 0, below 1, found 1");
    refused(t, "{\"optim\": {\"head\": {\"eps\": 0}}}", "above 0, at most 1, found 0");
}

static void config_parse_refuses_duplicates_and_bad_json(TestCtx *t) {
    refused(t, "{\"model\": {\"n_layer\": 3, \"n_layer\": 4}}", "model.n_layer is given twice");
    refused(t, "{\"log\": {}, \"log\": {}}", "log is given twice");
    refused(t, "{\"log\": {}} x", "here.json:1: not valid JSON");
    refused(t, "{\"log\": {}}{}", "not valid JSON");
    refused(t, "{\n  // none\n}", "here.json:2: not valid JSON: comments are not allowed");
    refused(t, "{\"log\": {\"every\": 3,}}", "not valid JSON");
    refused(t, "{\"log\": ", "ends too early");
    refused(t, "", "ends too early");
    refused(t, "{\"log\": {\"every\": NaN}}", "not valid JSON");
    refused(t, "{\"data\": {\"train\": \"a\\u0000b\"}}", "\\u0000");
    char deep[20001];
    memset(deep, '[', 20000);
    deep[20000] = 0;
    refused(t, deep, "nested deeper than the 16 levels");
    Buf big = {0};
    buf_printf(&big, "{%*s}", 1 << 20, "");
    refused(t, big.text, "larger than");
    buf_free(&big);
}

static void config_parse_refuses_long_texts(TestCtx *t) {
    char json[700];
    snprintf(json, sizeof json, "{\"data\": {\"train\": \"%0511d\"}}", 0);
    Config c;
    Error err = {0};
    CHECK_MSG(t, config_parse(&c, json, "x", &err), "%s", err.text);
    snprintf(json, sizeof json, "{\"data\": {\"train\": \"%0512d\"}}", 0);
    refused(t, json, "data.train should be a text of at most 511 bytes");
    snprintf(json, sizeof json, "{\"attention\": {\"type\": \"%0300d\"}}", 0);
    refused(t, json, "attention.type should be one of");
    snprintf(json, sizeof json, "{\"model\": {\"%0500d\": 1}}", 0);
    refused(t, json, "unknown setting model.0000");
}

static void config_load_reads_the_base_first(TestCtx *t) {
    char *dir = test_temp_dir();
    Error err = {0};
    char *sub = path_join(dir, "sub");
    dir_make(sub, &err);
    mem_free(put(dir, "a.json", "{\"model\": {\"n_layer\": 2, \"n_embd\": 64}}"));
    mem_free(put(sub, "b.json",
                 "{\"model\": {\"n_layer\": 3, \"n_head\": 8}, \"base\": \"../a.json\"}"));
    char *path = put(sub, "c.json", "{\"base\": \"b.json\", \"model\": {\"n_head\": 16}}");
    Config c;
    CHECK_MSG(t, config_load(&c, path, &err), "%s", err.text);
    CHECK(t, c.model.n_layer == 3 && c.model.n_embd == 64 && c.model.n_head == 16);
    mem_free(path);
    mem_free(sub);
    test_remove_dir(dir);
    mem_free(dir);
}

// Loading dir/name fails with a sentence that holds both texts.
static void load_refused(TestCtx *t, const char *dir, const char *name, const char *file,
                         const char *words) {
    char *path = path_join(dir, name);
    Config c;
    config_default(&c);
    c.model.n_layer = 99;
    Error err = {0};
    CHECK_MSG(t, !config_load(&c, path, &err), "%s was accepted", name);
    CHECK_ERROR(t, err, file);
    CHECK_ERROR(t, err, words);
    CHECK(t, one_sentence(err.text) && c.model.n_layer == 99);
    mem_free(path);
}

static void config_load_refuses_bad_files_and_bases(TestCtx *t) {
    char *dir = test_temp_dir();
    mem_free(put(dir, "missing_base.json", "{\"base\": \"nowhere.json\"}"));
    mem_free(put(dir, "number_base.json", "{\"base\": 3}"));
    mem_free(put(dir, "two_bases.json", "{\"base\": \"bad.json\", \"base\": \"self.json\"}"));
    mem_free(put(dir, "self.json", "{\"base\": \"self.json\"}"));
    mem_free(put(dir, "ring_a.json", "{\"base\": \"ring_b.json\"}"));
    mem_free(put(dir, "ring_b.json", "{\"base\": \"./ring_a.json\"}"));
    mem_free(put(dir, "bad.json", "{\"model\": {\"n_layer\": 0}}"));
    mem_free(put(dir, "over_bad.json", "{\"base\": \"bad.json\"}"));
    load_refused(t, dir, "absent.json", "absent.json", "cannot open");
    load_refused(t, dir, "missing_base.json", "missing_base.json: base", "nowhere.json");
    load_refused(t, dir, "number_base.json", "number_base.json", "base should be the name");
    load_refused(t, dir, "self.json", "self.json", "circle");
    load_refused(t, dir, "ring_a.json", "ring_b.json", "circle");
    load_refused(t, dir, "over_bad.json", "bad.json", "model.n_layer");
    load_refused(t, dir, "two_bases.json", "bad.json", "model.n_layer");
    load_refused(t, dir, ".", dir, "is a directory");
    Buf big = {0};
    buf_printf(&big, "{%*s}", 1 << 20, "");
    mem_free(put(dir, "big.json", big.text));
    buf_free(&big);
    load_refused(t, dir, "big.json", "big.json", "larger than");
    char *path = path_join(dir, "nul.json");
    Error err = {0};
    file_write_atomic(path, "{}\0{", 4, &err);
    load_refused(t, dir, "nul.json", "nul.json:1", "NUL byte");
    mem_free(path);
    for (int i = 0; i < 12; i++) {
        char name[40], text[60];
        snprintf(name, sizeof name, "chain%d.json", i);
        snprintf(text, sizeof text, "{\"base\": \"chain%d.json\"}", i + 1);
        mem_free(put(dir, name, i == 11 ? "{}" : text));
    }
    Config c;
    path = path_join(dir, "chain3.json");
    CHECK_MSG(t, config_load(&c, path, &err), "%s", err.text);
    mem_free(path);
    load_refused(t, dir, "chain2.json", "chain10.json", "more than 8 files");
    test_remove_dir(dir);
    mem_free(dir);
}

static void override_refused(TestCtx *t, const char *assignment, const char *words) {
    Config c, before;
    config_default(&c);
    before = c;
    Error err = {0};
    CHECK_MSG(t, !config_override(&c, assignment, &err), "accepted %s", assignment);
    CHECK_ERROR(t, err, words);
    CHECK(t, one_sentence(err.text) && memcmp(&c, &before, sizeof c) == 0);
}

static void config_override_sets_every_type(TestCtx *t) {
    static const char *const good[] = {
        "model.n_layer=7",      "train.steps=1e4",           "optim.matrix.lr=1e-3",
        "model.bias=true",      "data.shuffle=false",        "model.position=none",
        "data.train=a=b *.bin", "train.sample_prompt=\"\"",  "checkpoint.dir=\"x y\"",
        "attention.type=mqa",   "batch.tokens=1099511627776"};
    Config c;
    Error err = {0};
    config_default(&c);
    snprintf(c.train.sample_prompt, sizeof c.train.sample_prompt, "old");
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        CHECK_MSG(t, config_override(&c, good[i], &err), "%s", err.text);
    CHECK(t, c.model.n_layer == 7 && c.train.steps == 10000);
    CHECK(t, c.optim.group[KIND_MATRIX].lr == 1e-3 && c.model.bias && !c.data.shuffle);
    CHECK(t, c.model.position == POSITION_NONE && strcmp(c.data.train, "a=b *.bin") == 0);
    CHECK(t, !*c.train.sample_prompt && strcmp(c.checkpoint.dir, "x y") == 0);
    CHECK(t, strcmp(c.attention.type, "mqa") == 0 && c.batch.tokens == (int64_t)1 << 40);
}

static void config_override_refuses_nonsense(TestCtx *t) {
    override_refused(t, "model.n_layer", "written section.field=value");
    override_refused(t, "model.n_layr=3", "did you mean model.n_layer?");
    override_refused(t, "model=3", "model is a group of settings");
    override_refused(t, "=3", "unknown setting");
    override_refused(t, "n_layer=3", "did you mean model.n_layer?");
    override_refused(t, "model.n_layer=", "an integer from 1 to 1024, found nothing");
    override_refused(t, "model.n_layer=4x", "found 4x");
    override_refused(t, "model.n_layer=2.5", "found 2.5");
    override_refused(t, "model.n_layer=0x10", "found 0x10");
    override_refused(t, "model.n_layer=4294967297", "'model.n_layer=4294967297'");
    override_refused(t, "train.seed=9007199254740993", "train.seed should be");
    override_refused(t, "train.seed=99999999999999999999", "train.seed should be");
    override_refused(t, "optim.matrix.lr=nan", "found nan");
    override_refused(t, "optim.matrix.lr=inf", "found inf");
    override_refused(t, "model.bias=yes", "true or false, found 'yes'");
    override_refused(t, "model.bias=1", "true or false, found '1'");
    override_refused(t, "model.norm=batchnorm", "one of rmsnorm, layernorm");
    override_refused(t, "attention.type=", "one of mha, mqa, gqa, mla, lrkv");
}

TEST_MAIN({"config_defaults_are_a_valid_config", config_defaults_are_a_valid_config},
          {"config_table_rows_are_sound", config_table_rows_are_sound},
          {"config_parse_reads_every_type", config_parse_reads_every_type},
          {"config_parse_refuses_unknown_keys_naming_the_nearest",
           config_parse_refuses_unknown_keys_naming_the_nearest},
          {"config_parse_refuses_wrong_types_with_expected_and_found",
           config_parse_refuses_wrong_types_with_expected_and_found},
          {"config_parse_refuses_numbers_out_of_range", config_parse_refuses_numbers_out_of_range},
          {"config_parse_refuses_duplicates_and_bad_json",
           config_parse_refuses_duplicates_and_bad_json},
          {"config_parse_refuses_long_texts", config_parse_refuses_long_texts},
          {"config_load_reads_the_base_first", config_load_reads_the_base_first},
          {"config_load_refuses_bad_files_and_bases", config_load_refuses_bad_files_and_bases},
          {"config_override_sets_every_type", config_override_sets_every_type},
          {"config_override_refuses_nonsense", config_override_refuses_nonsense})
