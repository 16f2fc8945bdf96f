// cmd_eval.c - train_gpt eval: loss, perplexity and bits per byte over shards or raw text.
#include "gpt/evaluate.h"
#include "gpt/load.h"

#include <limits.h>
#include <math.h>
#include <string.h>

typedef struct EvalCommand {
    OptionList data;
    const char *device;
    int64_t tokens, batch;
    bool json;
} EvalCommand;

enum { N_OPTIONS = 5, TEXT_MAX_BYTES = 1 << 30, BATCH_TOKENS = 4096 };

static void options(Option *out, EvalCommand *e) {
    const Option rows[N_OPTIONS] = {
        {"--data", NULL, OPT_LIST, &e->data, 0, 0, "PATH",
         "text file, or .bin shards (globs may be quoted; whole sequences only); may be given "
         "several times"},
        {"--tokens", NULL, OPT_INT, &e->tokens, 0, 9e15, "N", "score at most N tokens; 0: all"},
        {"--batch", NULL, OPT_INT, &e->batch, 0, 65536, "B", "sequences side by side; 0: chosen"},
        {"--device", NULL, OPT_TEXT, &e->device, 0, 0, "NAME", "auto, cpu or cuda"},
        {"--json", NULL, OPT_FLAG, &e->json, 0, 0, NULL, "the result as one JSON object"},
    };
    memcpy(out, rows, sizeof rows);
}

static bool is_shard(const char *path) {
    size_t n = strlen(path);
    return n > 4 && strcmp(path + n - 4, ".bin") == 0;
}

static bool eval_shards(const Loaded *l, const char *pattern, int64_t max_tokens, EvalSum *sum,
                        Error *err) {
    DataLoaderOptions o = {.patterns = pattern, .seq_len = l->m->T, .n_vocab = l->m->V};
    DataLoader *d = dataloader_open(&o, err);
    bool ok = d && eval_loader(l->m, l->tok, d, max_tokens, NULL, sum, err);
    dataloader_close(d);
    return ok;
}

// The text as one document: it starts behind an end-of-text token, so every token of it is scored.
static bool eval_text(const Loaded *l, const char *path, int64_t max_tokens, EvalSum *sum,
                      Error *err) {
    char *text;
    size_t n;
    if (!l->tok) {
        return error_set(
            err, "%s: text needs the model's tokenizer, and no tokenizer.json lies beside %s", path,
            l->model_path);
    }
    if (!file_read(path, TEXT_MAX_BYTES, &text, &n, err)) return false;
    TokenIds ids = {0};
    if (tokenizer_eot(l->tok) >= 0) token_ids_add(&ids, tokenizer_eot(l->tok));
    tokenizer_encode_to(l->tok, text, n, false, &ids);
    mem_free(text);
    bool ok = ids.n >= 2 || error_set(err, "%s: holds no text to score", path);
    for (size_t i = 0; ok && i < ids.n; i++) {
        if (ids.ids[i] >= l->m->V) {
            ok = error_set(err, "%s: token %d is outside the model's vocabulary of %d", path,
                           ids.ids[i], l->m->V);
        }
    }
    if (ok) eval_ids(l->m, l->tok, ids.ids, ids.n, max_tokens, sum);
    token_ids_free(&ids);
    return ok;
}

static void print_number(const char *before, double x, bool json) {
    if (isfinite(x))
        printf("%s%.6g", before, x);
    else
        printf("%s%s", before, json ? "null" : "n/a");
}

static void print_result(const EvalSum *s, bool json) {
    double loss = eval_loss(s), bpb = eval_bits_per_byte(s);
    print_number(json ? "{\"loss\": " : "loss ", loss, json);
    print_number(json ? ", \"perplexity\": " : ", perplexity ", exp(loss), json);
    print_number(json ? ", \"bits_per_byte\": " : ", bits per byte ", bpb, json);
    printf(json ? ", \"tokens\": %lld, \"bytes\": %lld}\n" : ", over %lld tokens and %lld bytes\n",
           (long long)s->tokens, (long long)s->bytes);
}

static bool run(const EvalCommand *e, Loaded *l, Error *err) {
    Config *c = &l->m->cfg;
    int T = c->model.seq_len, B = e->batch ? (int)e->batch : max_int(1, BATCH_TOKENS / T);
    EvalSum sum = {0};
    if ((int64_t)B * T > INT_MAX)
        return error_set(err, "--batch %d times model.seq_len %d is more than %d tokens at once", B,
                         T, INT_MAX);
    model_alloc_acts(l->m, B, T);
    for (int i = 0; i < e->data.n; i++) {
        const char *path = e->data.text[i];
        int64_t left = e->tokens ? e->tokens - sum.tokens - sum.bad : 0;
        if (e->tokens && left <= 0) break;
        bool ok = is_shard(path) ? eval_shards(l, path, left, &sum, err)
                                 : eval_text(l, path, left, &sum, err);
        if (!ok) return false;
    }
    if (sum.bad) {
        return error_set(
            err, "%s: the loss of %lld of %lld tokens is not finite; the weights are damaged",
            l->model_path, (long long)sum.bad, (long long)(sum.bad + sum.tokens));
    }
    print_result(&sum, e->json);
    return true;
}

int eval_main(const Program *p, int argc, char **argv, bool help) {
    EvalCommand e = {.device = "auto"};
    Option table[N_OPTIONS];
    options(table, &e);
    CommandLine line = {
        .options = table,
        .n_options = N_OPTIONS,
        .expects = "eval expects a run directory, a checkpoint or a model.safetensors, and "
                   "--data PATH"};
    int status;
    if (!command_line(&line, argc, argv, help, &status)) return status;
    Error err = {0};
    if (e.data.n == 0) {
        error_set(&err, "eval expects --data PATH, a text file or .bin shards");
        return command_failed(&err, 2);
    }
    Loaded l = {0};
    bool ok = loaded_open(&l, line.subject[0], line.setting, line.n_settings, p, e.device, &err) &&
              run(&e, &l, &err);
    loaded_close(&l);
    return ok ? 0 : command_failed(&err, 1);
}
