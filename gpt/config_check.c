// config_check.c - combinations of settings: what must divide what, what needs what.
// A setting that would have no effect is refused, so that a config never promises what a run
// ignores.
#include "gpt/config_table.h"

#include <limits.h>
#include <string.h>

static bool is_type(const Config *c, const char *type) {
    return strcmp(c->attention.type, type) == 0;
}

// Settings with needs_key that differ from their default while they have no effect.
static bool check_unused(const Config *c, Error *err) {
    for (int i = 0; i < config_table_n; i++) {
        const Setting *s = &config_table[i];
        if (setting_in_use(s, c) || setting_is_default(s, c)) continue;
        Buf is = {0}, now = {0}, initial = {0};
        Config plain;
        config_default(&plain);
        setting_format(&is, s, c);
        setting_format(&now, setting_find(s->needs_key), c);
        setting_format(&initial, s, &plain);
        error_set(
            err,
            "%s is %s but has an effect only with %s %s, and %s is %s: leave it out or set it "
            "to its default %s",
            s->key, is.text, s->needs_key, s->needs_words, s->needs_key, now.text, initial.text);
        buf_free(&is);
        buf_free(&now);
        buf_free(&initial);
        return false;
    }
    return true;
}

static bool check_heads(Config *c, Error *err) {
    int n_embd = c->model.n_embd, n_head = c->model.n_head;
    if (!c->model.head_dim && n_embd % n_head)
        return error_set(err,
                         "model.n_embd %d is not a multiple of model.n_head %d: change one of them "
                         "or set model.head_dim",
                         n_embd, n_head);
    c->model.head_dim = config_head_dim(c);
    if (!c->model.ffn_dim) c->model.ffn_dim = 4 * n_embd;
    return true;
}

static bool check_kv_heads(const Config *c, Error *err) {
    int n_kv = c->attention.n_kv_head, n_head = c->model.n_head;
    const char *type = c->attention.type;
    if (is_type(c, "gqa")) {
        if (!n_kv)
            return error_set(err,
                             "attention.type gqa needs attention.n_kv_head, a divisor of "
                             "model.n_head %d",
                             n_head);
        if (n_head % n_kv)
            return error_set(err, "attention.n_kv_head %d does not divide model.n_head %d", n_kv,
                             n_head);
        return true;
    }
    bool implied = (is_type(c, "mha") && n_kv == n_head) || (is_type(c, "mqa") && n_kv == 1);
    if (!n_kv || implied) return true;
    return error_set(err,
                     "attention.n_kv_head is %d but attention.type %s does not choose its number "
                     "of key/value heads: leave it out (0) or set attention.type=gqa",
                     n_kv, type);
}

static bool check_attention(const Config *c, Error *err) {
    if (!check_kv_heads(c, err)) return false;
    if (is_type(c, "lrkv") && c->attention.rank < 0)
        return error_set(err,
                         "attention.type lrkv needs attention.rank, the rank of each head's "
                         "residual (about 0.4 of the head size %d)",
                         c->model.head_dim);
    if (is_type(c, "lrkv") && c->attention.rank > c->model.head_dim)
        return error_set(err,
                         "attention.rank %d is more than model.head_dim %d, which adds parameters "
                         "but no rank",
                         c->attention.rank, c->model.head_dim);
    if (is_type(c, "mla") && !c->attention.kv_lora_rank)
        return error_set(err,
                         "attention.type mla needs attention.kv_lora_rank, the width of the "
                         "cached latent (about model.n_embd %d / 6)",
                         c->model.n_embd);
    AttnDims d = config_attn_dims(c, 1, c->model.seq_len, c->model.seq_len);
    if (d.HR && d.position != POSITION_ROPE)
        return error_set(err,
                         "attention.qk_rope_head_dim is %d but model.position is not rope: "
                         "leave it out (0) or set model.position=rope",
                         d.HR);
    if (attention_rope_width(&d) % 2)
        return error_set(err,
                         "%s is %d but rotary positions turn pairs: choose an even width or "
                         "another model.position",
                         d.HR ? "attention.qk_rope_head_dim" : "model.head_dim",
                         attention_rope_width(&d));
    // Widths of joined rows and token buffers are int.
    int64_t widest = (int64_t)d.NH * (d.HS + d.HV + 2 * (int64_t)attn_stored_rank(d.R) + d.HR);
    if (widest + 2 * (int64_t)d.HS + d.RKV + d.RQ > INT_MAX / 2)
        return error_set(err, "model.n_head %d times model.head_dim %d is too wide", d.NH, d.HS);
    const Attention *a = attention_find(c->attention.type);
    const char *why = a->check ? a->check(&d) : NULL;
    return !why || error_set(err, "attention.type %s: %s", c->attention.type, why);
}

// The multiples of `unit` next to n, the lower one only when it is not 0.
static void near_multiples(Buf *out, int64_t n, int64_t unit) {
    int64_t low = n / unit * unit;
    if (low) buf_printf(out, "%lld or ", (long long)low);
    buf_printf(out, "%lld", (long long)(low + unit));
}

static bool check_batch(const Config *c, Error *err) {
    int64_t T = c->model.seq_len, micro = c->batch.micro_batch, tokens = c->batch.tokens;
    if (micro * T > INT_MAX)
        return error_set(err,
                         "batch.micro_batch %lld times model.seq_len %lld is more than %d "
                         "tokens at once",
                         (long long)micro, (long long)T, INT_MAX);
    if (c->train.steps > INT64_MAX / tokens)
        return error_set(err,
                         "train.steps %lld times batch.tokens %lld are more tokens than can "
                         "be counted",
                         (long long)c->train.steps, (long long)tokens);
    int64_t unit = T * (micro ? micro : 1);
    if (tokens % unit == 0) return true;
    Buf near = {0};
    near_multiples(&near, tokens, unit);
    if (micro)
        error_set(err,
                  "batch.tokens %lld is not a multiple of model.seq_len %lld times "
                  "batch.micro_batch %lld; the nearest are %s",
                  (long long)tokens, (long long)T, (long long)micro, near.text);
    else
        error_set(err,
                  "batch.tokens %lld is not a multiple of model.seq_len %lld; the nearest "
                  "are %s",
                  (long long)tokens, (long long)T, near.text);
    buf_free(&near);
    return false;
}

static bool check_optim(const Config *c, Error *err) {
    if (c->optim.group[KIND_EMBED].optimizer == OPTIM_MUON)
        return error_set(err, "optim.embed.optimizer is muon, which would mix the rows of "
                              "unrelated tokens: use adamw");
    if (c->optim.group[KIND_VECTOR].optimizer == OPTIM_MUON)
        return error_set(err, "optim.vector.optimizer is muon, which works on matrices, not on "
                              "gains and biases: use adamw");
    return true;
}

static bool check_schedule(const Config *c, Error *err) {
    int64_t warmup = c->schedule.warmup_steps, steps = c->train.steps;
    if (warmup > steps)
        return error_set(err, "schedule.warmup_steps %lld is more than train.steps %lld",
                         (long long)warmup, (long long)steps);
    double decay = c->schedule.decay_fraction;
    if (c->schedule.kind == SCHEDULE_WSD && (double)warmup > (1 - decay) * (double)steps + 0.5)
        return error_set(err,
                         "schedule.warmup_steps %lld reaches into the last %g of "
                         "train.steps %lld, where schedule.decay_fraction lets the rate fall",
                         (long long)warmup, decay, (long long)steps);
    return true;
}

bool config_finish(Config *c, Error *err) {
    return check_heads(c, err) && check_unused(c, err) && check_attention(c, err) &&
           check_batch(c, err) && check_optim(c, err) && check_schedule(c, err);
}
