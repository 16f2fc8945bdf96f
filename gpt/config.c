// config.c - a Config as a whole: defaults, command-line overrides and the sizes it means.
// Single settings are in config_value.c, combinations of settings in config_check.c.
#include "gpt/config_table.h"

#include <math.h>
#include <string.h>

void config_default(Config *c) {
    memset(c, 0, sizeof *c);
    for (int i = 0; i < config_table_n; i++)
        setting_default(&config_table[i], c);
}

void config_reset(Config *c, const char *section) {
    size_t n = strlen(section);
    for (int i = 0; i < config_table_n; i++) {
        const char *key = config_table[i].key;
        if (strncmp(key, section, n) == 0 && (key[n] == 0 || key[n] == '.'))
            setting_default(&config_table[i], c);
    }
}

static bool override_value(Config *c, const Setting *s, const char *value, const char *where,
                           Error *err) {
    bool yes = strcmp(value, "true") == 0, no = strcmp(value, "false") == 0;
    if (s->type == SETTING_BOOL && (yes || no)) {
        setting_store(s, c, yes);
        return true;
    }
    if (s->type == SETTING_INT || s->type == SETTING_I64 || s->type == SETTING_F64) {
        double number;
        bool decimal = strspn(value, "+-.0123456789eE") == strlen(value);  // no hexadecimal
        if (decimal && parse_f64(value, &number))
            return setting_set_number(s, c, number, where, err);
        return setting_refuse(s, where, *value ? value : "nothing", err);
    }
    size_t n = strlen(value);
    if (n < 2 || value[0] != '"' || value[n - 1] != '"')
        return setting_set_text(s, c, value, where, err);
    char *bare = str_copy(value + 1);
    bare[n - 2] = 0;
    bool ok = setting_set_text(s, c, bare, where, err);
    mem_free(bare);
    return ok;
}

bool config_override(Config *c, const char *assignment, Error *err) {
    const char *equals = strchr(assignment, '=');
    if (!equals)
        return error_set(err, "'%.100s': an override is written section.field=value", assignment);
    Buf where = {0};
    buf_printf(&where, "'%.100s'", assignment);
    char *key = str_copy(assignment);
    key[equals - assignment] = 0;
    const Setting *s = setting_find(key);
    bool ok;
    if (s)
        ok = override_value(c, s, equals + 1, where.text, err);
    else if (setting_is_section(key))
        ok = error_set(err, "%s: %s is a group of settings; write %s.field=value", where.text, key,
                       key);
    else
        ok = setting_unknown(key, where.text, err);
    mem_free(key);
    buf_free(&where);
    return ok;
}

bool config_open(Config *c, const char *path, const char *const *overrides, int n, Error *err) {
    if (!config_load(c, path, err)) return false;
    for (int i = 0; i < n; i++) {
        if (!config_override(c, overrides[i], err)) return false;
    }
    return config_finish(c, err) || error_prefix(err, path);
}

int config_micro_batch(const Config *c, int ranks) {
    enum { MICRO_BATCH_TOKENS = 8192 };
    int64_t sequences = c->batch.tokens / c->model.seq_len;
    if (c->batch.micro_batch) return c->batch.micro_batch;
    if (sequences % ranks) return 0;
    sequences /= ranks;
    int64_t most = MICRO_BATCH_TOKENS / c->model.seq_len;
    int64_t n = most < sequences ? most : sequences;
    for (; n > 1 && sequences % n; n--) {
    }
    return n < 1 ? 1 : (int)n;
}

int config_padded_vocab(const Config *c) {
    return (int)round_up((size_t)c->model.vocab_size, 128);
}

float config_proj_std(const Config *c, int fan_in) {
    if (c->model.zero_init_proj) return 0;
    double in = c->model.init_std > 0 ? c->model.init_std : 1 / sqrt((double)fan_in);
    return (float)(in / sqrt(2.0 * c->model.n_layer));
}

int config_head_dim(const Config *c) {
    return c->model.head_dim ? c->model.head_dim : c->model.n_embd / c->model.n_head;
}

static int kv_heads(const Config *c) {
    if (c->attention.n_kv_head) return c->attention.n_kv_head;
    return strcmp(c->attention.type, "mqa") == 0 ? 1 : c->model.n_head;
}

AttnDims config_attn_dims(const Config *c, int B, int T, int Tmax) {
    AttnDims d = {.B = B, .T = T, .C = c->model.n_embd, .Tmax = Tmax};
    d.NH = c->model.n_head, d.NKV = kv_heads(c);
    d.HS = config_head_dim(c);
    d.HV = c->attention.v_head_dim ? c->attention.v_head_dim : d.HS;
    d.RQ = c->attention.q_lora_rank, d.RKV = c->attention.kv_lora_rank;
    d.HR = c->attention.qk_rope_head_dim;
    d.R = max_int(c->attention.rank, 0);
    d.residual_ratio = (float)c->attention.residual_init_ratio;
    d.eps = (float)c->model.norm_eps;
    d.qk_norm = c->model.qk_norm, d.bias = c->model.bias;
    d.any_order = !c->train.deterministic;
    d.position = (Position)c->model.position;
    d.path = (AttnPath)c->attention.path;
    d.std_in = (float)c->model.init_std;
    d.std_out = config_proj_std(c, d.NH * d.HV);
    d.compute = (ElemType)c->train.compute;
    d.cache_type = (ElemType)c->generate.kv_type;
    return d;
}
