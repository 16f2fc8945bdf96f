// plan_print.c - a Plan for people and as JSON. Computes nothing but percentages and units.
#include "gpt/config_table.h"
#include "gpt/plan.h"

#include <string.h>

static const char *const kind_names[N_KINDS] = {"embed", "head", "matrix", "vector"};

// "156.3 M"; three digits behind the largest fitting prefix of 1000s.
static const char *count_text(char text[24], double n) {
    static const char *const unit[] = {"", "k", "M", "G", "T", "P", "E", "Z"};
    int i = 0;
    while (n >= 1000 && i < 7) {
        n /= 1000;
        i++;
    }
    snprintf(text, 24, "%.4g %s", n, unit[i]);
    return text;
}

static const char *bytes_text(char text[24], size_t bytes) {
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double n = (double)bytes;
    int i = 0;
    while (n >= 1024 && i < 5) {
        n /= 1024;
        i++;
    }
    snprintf(text, 24, i ? "%.1f %s" : "%.0f %s", n, unit[i]);
    return text;
}

// The setting's value as a word: "adamw", "lrkv".
static void add_value(Buf *b, const Config *c, const char *key) {
    setting_format(b, setting_find(key), c);
}

static void print_model(FILE *out, const Plan *p) {
    const Config *c = &p->cfg;
    Buf words = {0};
    add_value(&words, c, "model.norm");
    buf_printf(&words, ", ");
    add_value(&words, c, "model.position");
    buf_printf(&words, " positions, ");
    add_value(&words, c, "model.activation");
    fprintf(out, "model       %s, %d layers, %d channels, %d heads of %d, MLP %d, %s\n",
            c->attention.type, c->model.n_layer, c->model.n_embd, c->model.n_head,
            c->model.head_dim, c->model.ffn_dim, words.text);
    fprintf(out, "            vocabulary %d (%d padded), sequences of %d tokens\n\n",
            c->model.vocab_size, config_padded_vocab(c), c->model.seq_len);
    buf_free(&words);
}

static void print_parameters(FILE *out, const Plan *p) {
    char text[24];
    fprintf(out, "parameters  %s = %zu with the vocabulary padded\n",
            count_text(text, (double)p->parameters), p->parameters);
    fprintf(out, "            %s = %zu without padding\n", count_text(text, (double)p->unpadded),
            p->unpadded);
    fprintf(out, "            %s = %zu without embeddings and head\n",
            count_text(text, (double)p->non_embedding), p->non_embedding);
    for (int k = 0; k < N_KINDS; k++) {
        if (!p->kind_tensors[k]) continue;
        char key[40];
        Buf optimizer = {0};
        snprintf(key, sizeof key, "optim.%s.optimizer", kind_names[k]);
        add_value(&optimizer, &p->cfg, key);
        fprintf(out, "  %-8s  %4d tensors %16zu   %s\n", kind_names[k], p->kind_tensors[k],
                p->kind_parameters[k], optimizer.text);
        buf_free(&optimizer);
    }
}

static void print_tensors(FILE *out, const Plan *p) {
    fprintf(out, "\ntensors\n");
    for (int i = 0; i < p->table.n; i++) {
        const Tensor *t = &p->table.tensor[i];
        const TensorSpec *s = &t->spec;
        char shape[40], stored[40] = "";
        if (s->dim[1])
            snprintf(shape, sizeof shape, "%d x %d", s->dim[0], s->dim[1]);
        else
            snprintf(shape, sizeof shape, "%d", s->dim[0]);
        if (spec_stored(s) != spec_logical(s))
            snprintf(stored, sizeof stored, "  stored %d x %d", spec_rows(s), spec_cols(s));
        fprintf(out, "  %-24s %-7s %14zu  %s%s\n", t->name, kind_names[s->kind], spec_logical(s),
                shape, stored);
    }
}

static void print_flops(FILE *out, const Plan *p) {
    const PlanFlops *f = &p->flops;
    char text[24], step[24], run[24];
    double tokens = (double)p->cfg.batch.tokens;
    fprintf(out, "\ntraining    %sFLOP a token, 6 N + 3 L H (K + V) T, causal; N = %zu\n",
            count_text(text, f->causal), p->in_products);
    fprintf(out, "            %sFLOP a token, 6 N + 6 L H (K + V) T, both triangles\n",
            count_text(text, f->full));
    fprintf(out,
            "            %sFLOP a token executed, and %sFLOP a step in the optimizer (%.1f %%)\n",
            count_text(text, f->executed), count_text(step, f->optimizer_step),
            100 * f->optimizer_step / (f->optimizer_step + f->executed * tokens));
    fprintf(out,
            "            %lld tokens a step = %d process%s x %lld micro-steps x %d sequences\n",
            (long long)p->cfg.batch.tokens, p->ranks, p->ranks == 1 ? "" : "es",
            (long long)p->micro_steps, p->micro_batch);
    fprintf(out, "            %lld steps, %s tokens, %sFLOP in all (causal)\n",
            (long long)p->cfg.train.steps, count_text(text, (double)p->tokens),
            count_text(run, f->causal * (double)p->tokens));
    if (p->seconds > 0)
        fprintf(out, "            %.4g hours = %.4g days at the given speed\n", p->seconds / 3600,
                p->seconds / 86400);
}

static void print_bytes(FILE *out, const Plan *p) {
    const PlanBytes *b = &p->bytes;
    const struct {
        const char *name;
        size_t bytes;
        const char *what;
    } rows[] = {
        {"parameters", b->parameters, ""},
        {"gradients", b->gradients, "fp32"},
        {"optimizer", b->optimizer, "moments, momenta, masters, work space"},
        {"activations", b->activations, "of one micro-batch"},
        {"prepared", b->prepared, "packed copies of weights"},
        {"derived", b->derived, "merged weights"},
        {"tables", b->tables, "rotary table, token ids of a step"},
        {"total", b->total, "for training, each process"},
        {"generation", p->generate_bytes, "weights and the cache of one full sequence"},
    };
    char text[24];
    fprintf(out, "\nmemory      on %s\n", p->device);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].bytes)
            fprintf(out, "  %-12s %12s %18zu%s%s\n", rows[i].name, bytes_text(text, rows[i].bytes),
                    rows[i].bytes, *rows[i].what ? "  " : "", rows[i].what);
    }
}

static void print_cache(FILE *out, const Plan *p) {
    const PlanCache *k = &p->cache;
    char text[24];
    fprintf(out, "\ncache       %zu values a token and layer (%.1f %% of mha), %zu bytes in %s\n",
            k->values, 100 * k->share_of_mha, k->token_layer_bytes, elem_name(k->type));
    fprintf(out, "            %s = %zu bytes for a sequence of %d tokens",
            bytes_text(text, k->sequence_bytes), k->sequence_bytes, p->cfg.model.seq_len);
    fprintf(out, ", %zu allocated\n", k->sequence_allocated);
}

void plan_print(FILE *out, const Plan *p, bool tensors) {
    print_model(out, p);
    print_parameters(out, p);
    if (tensors) print_tensors(out, p);
    print_flops(out, p);
    print_bytes(out, p);
    print_cache(out, p);
}

// --- JSON

static void add_count(Buf *b, const char *key, size_t n) {
    buf_printf(b, "%s\"%s\": %zu", b->text[b->n - 1] == '{' ? "" : ", ", key, n);
}

static void add_real(Buf *b, const char *key, double x) {
    buf_printf(b, "%s\"%s\": ", b->text[b->n - 1] == '{' ? "" : ", ", key);
    buf_number(b, x);
}

static void json_kinds(Buf *b, const Plan *p) {
    buf_printf(b, ",\n \"tensors\": {");
    for (int k = 0; k < N_KINDS; k++) {
        buf_printf(b, "%s\"%s\": {", k ? ", " : "", kind_names[k]);
        add_count(b, "count", (size_t)p->kind_tensors[k]);
        add_count(b, "parameters", p->kind_parameters[k]);
        buf_printf(b, "}");
    }
    buf_printf(b, "}");
}

static void json_training(Buf *b, const Plan *p) {
    buf_printf(b, ",\n \"flops\": {");
    add_real(b, "token_causal", p->flops.causal);
    add_real(b, "token_full", p->flops.full);
    add_real(b, "token_executed", p->flops.executed);
    add_real(b, "optimizer_step", p->flops.optimizer_step);
    add_real(b, "run_causal", p->flops.causal * (double)p->tokens);
    buf_printf(b, "},\n \"training\": {");
    add_count(b, "step_tokens", (size_t)p->cfg.batch.tokens);
    add_count(b, "micro_batch", (size_t)p->micro_batch);
    add_count(b, "micro_steps", (size_t)p->micro_steps);
    add_count(b, "ranks", (size_t)p->ranks);
    add_count(b, "steps", (size_t)p->cfg.train.steps);
    add_count(b, "tokens", (size_t)p->tokens);
    if (p->seconds > 0) add_real(b, "seconds", p->seconds);
    buf_printf(b, "}");
}

static void json_bytes(Buf *b, const Plan *p) {
    const PlanBytes *y = &p->bytes;
    buf_printf(b, ",\n \"bytes\": {");
    add_count(b, "parameters", y->parameters);
    add_count(b, "gradients", y->gradients);
    add_count(b, "optimizer", y->optimizer);
    add_count(b, "activations", y->activations);
    add_count(b, "prepared", y->prepared);
    add_count(b, "derived", y->derived);
    add_count(b, "tables", y->tables);
    add_count(b, "total", y->total);
    add_count(b, "generate", p->generate_bytes);
    buf_printf(b, "},\n \"cache\": {\"type\": \"%s\"", elem_name(p->cache.type));
    add_count(b, "values_per_token_layer", p->cache.values);
    add_count(b, "bytes_per_token_layer", p->cache.token_layer_bytes);
    add_count(b, "bytes_per_sequence", p->cache.sequence_bytes);
    add_count(b, "bytes_allocated", p->cache.sequence_allocated);
    add_real(b, "share_of_mha", p->cache.share_of_mha);
    buf_printf(b, "}");
}

char *plan_json(const Plan *p) {
    Buf b = {0};
    buf_printf(&b, "{\"attention\": \"%s\", \"device\": \"%s\",\n ", p->cfg.attention.type,
               p->device);
    buf_printf(&b, "\"parameters\": %zu", p->parameters);
    add_count(&b, "parameters_unpadded", p->unpadded);
    add_count(&b, "parameters_non_embedding", p->non_embedding);
    add_count(&b, "parameters_in_products", p->in_products);
    json_kinds(&b, p);
    json_training(&b, p);
    json_bytes(&b, p);
    buf_printf(&b, "}\n");
    return b.text;
}
