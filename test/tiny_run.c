// tiny_run.c - see tiny_run.h.
#define _POSIX_C_SOURCE 200809L
#include "test/tiny_run.h"

#include "data/shard.h"
#include "gpt/rng.h"
#include "test/arrays.h"
#include "test/small_tokenizer.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

const TinyVariant tiny_variants[] = {
    {"mha", "attention.type=mha"},
    {"mqa", "attention.type=mqa"},
    {"gqa", "attention.type=gqa attention.n_kv_head=2 optim.muon_unit=head"},
    {"mla", "attention.type=mla attention.kv_lora_rank=12"},
    {"lrkv", "attention.type=lrkv attention.rank=3"},
    {"mla decoupled", "attention.type=mla attention.kv_lora_rank=12 attention.q_lora_rank=10 "
                      "attention.qk_rope_head_dim=4 attention.v_head_dim=6 "
                      "model.activation=swiglu"},
    {"lrkv merged", "attention.type=lrkv attention.rank=3 attention.path=merged"},
    {"mha gpt2", "attention.type=mha model.norm=layernorm model.norm_weight=true "
                 "model.embed_norm=false model.position=learned model.qk_norm=false "
                 "model.activation=gelu model.bias=true model.tied_embeddings=true "
                 "model.logit_softcap=0 model.embed_std=0.3"},
    {NULL, NULL}};

const TinyVariant tiny_least[] = {
    {"mha, heads of 1", "model.position=learned model.head_dim=1 model.qk_norm=false"},
    {"mqa, heads of 2", "attention.type=mqa model.head_dim=2"},
    {"gqa, odd heads", "attention.type=gqa attention.n_kv_head=2 model.position=none "
                       "model.head_dim=3"},
    {"mla, latent of 1", "attention.type=mla attention.kv_lora_rank=1 attention.q_lora_rank=1 "
                         "attention.v_head_dim=1 model.head_dim=2"},
    {"mla, odd heads", "attention.type=mla attention.kv_lora_rank=5 attention.qk_rope_head_dim=2 "
                       "attention.v_head_dim=7 model.head_dim=3"},
    {"lrkv, rank 0", "attention.type=lrkv attention.rank=0"},
    {"lrkv, full rank", "attention.type=lrkv attention.rank=8"},
    {"lrkv, rank 1", "attention.type=lrkv attention.rank=1 model.head_dim=1 "
                     "model.position=learned model.qk_norm=false"},
    {NULL, NULL}};

static const char base_settings[] =
    "model.n_layer=2 model.n_embd=32 model.n_head=4 model.ffn_dim=48 model.seq_len=16 "
    "model.vocab_size=263 model.zero_init_proj=false model.head_std=0.1 batch.tokens=64 "
    "schedule.kind=constant schedule.warmup_steps=0 optim.embed.lr=0.05 train.steps=10 "
    "train.threads=1 train.eval_every=0 checkpoint.every=0 log.every=1000000";

void tiny_set(Config *c, const char *settings) {
    char *text = str_copy(settings ? settings : ""), *rest = text, *word;
    Error err;
    while ((word = strtok_r(rest, " ", &rest))) {
        if (!config_override(c, word, &err)) die("%s", err.text);
    }
    mem_free(text);
}

void tiny_config(Config *c, const char *settings, const char *more) {
    Error err;
    config_default(c);
    tiny_set(c, base_settings);
    tiny_set(c, settings);
    tiny_set(c, more);
    if (!config_finish(c, &err)) die("%s", err.text);
}

Model *tiny_model(const Config *c, bool training) {
    set_threads(1);
    Model *m = model_create(c, ops_cpu(), training);
    model_init(m, 1);
    return m;
}

void tiny_extend(Model *m, Cache *c, const int *ids, int n, int chunk, float *logits) {
    size_t V = (size_t)m->cfg.model.vocab_size;
    for (int at = c->pos[0]; at < n; at = c->pos[0]) {
        int k = min_int(chunk, n - at);
        model_extend(m, c, ids + at, k, &k, logits + (size_t)at * V, true);
    }
}

void tiny_by_cache(Model *m, const int *ids, int n, int prefill, float *logits) {
    Cache *c = cache_create(m, 1, n, prefill);
    tiny_extend(m, c, ids, prefill, prefill, logits);
    tiny_extend(m, c, ids, n, 1, logits);
    cache_free(m, c);
}

// Half of the ids follow from the one before, so that there is something to learn.
void tiny_ids(int *ids, size_t n, int limit, uint64_t seed) {
    uint64_t key = rng_key(seed, "tiny");
    for (size_t i = 0; i < n; i++) {
        uint64_t draw = rng_u64(key, i);
        bool follows = i > 0 && draw >> 63;
        ids[i] = follows ? (5 * ids[i - 1] + 3) % limit : (int)(draw % (uint64_t)limit);
    }
}

static void no_peaks(Peaks *out) {
    *out = (Peaks){.fma_flops = 1e15, .bf16_flops = 1e15, .read_bytes = 1e15};
}

Ops tiny_unmeasured(const Ops *ops) {
    Ops copy = *ops;
    copy.measure_peaks = no_peaks;
    return copy;
}

const Ops *tiny_ops(void) {
    static Ops ops;
    ops = tiny_unmeasured(ops_cpu());
    return &ops;
}

// --- files

char *tiny_path(const TinyRun *r, const char *name) {
    return path_join(r->dir, name);
}

void tiny_shard(const TinyRun *r, const char *name, const int *ids, size_t n) {
    Error err;
    ShardWriter w;
    char *path = tiny_path(r, name);
    if (!shard_writer_open(&w, path, 2, &err) || !shard_writer_add(&w, ids, n, &err) ||
        !shard_writer_close(&w, &err)) {
        die("%s", err.text);
    }
    mem_free(path);
}

TinyRun *tiny_open(void) {
    static const struct {
        const char *name;
        size_t n;
    } shard[] = {{"train_0.bin", TINY_SEQ * 13 + 3},
                 {"train_1.bin", TINY_SEQ * 6 + 1},
                 {"train_2.bin", TINY_SEQ * 22 + 15},
                 {"val_0.bin", TINY_SEQ * TINY_VAL_SAMPLES + 1}};
    TinyRun *r = mem_alloc(1, sizeof *r);
    char fast[] = "/dev/shm/train_gpt_test_XXXXXX";  // hundreds of saves wait for a disk
    r->dir = mkdtemp(fast) ? str_copy(fast) : test_temp_dir();
    int ids[TINY_SEQ * 32];
    for (size_t i = 0; i < sizeof shard / sizeof shard[0]; i++) {
        tiny_ids(ids, shard[i].n, TINY_VOCAB, i + 1);
        tiny_shard(r, shard[i].name, ids, shard[i].n);
    }
    Error err;
    Tokenizer *tok = small_tokenizer();
    char *path = tiny_path(r, "tokenizer.json");
    if (!tokenizer_save(tok, path, &err)) die("%s", err.text);
    mem_free(path);
    tokenizer_free(tok);
    return r;
}

void tiny_close(TinyRun *r) {
    test_remove_dir(r->dir);
    mem_free(r->dir);
    mem_free(r);
}

void tiny_run_config(const TinyRun *r, Config *c, const char *settings, const char *more) {
    Buf files = {0};
    buf_printf(&files,
               "data.train=%s/train_*.bin data.val=%s/val_*.bin data.tokenizer=%s/tokenizer.json "
               "checkpoint.dir=%s/run %s",
               r->dir, r->dir, r->dir, r->dir, more ? more : "");
    tiny_config(c, settings, files.text);
    buf_free(&files);
}

// --- runs

static void append_file(const char *path, Buf *to) {
    char *text;
    size_t n;
    Error err;
    if (to && file_read(path, 1 << 26, &text, &n, &err)) {
        buf_add(to, text, n);
        mem_free(text);
    }
}

// The descriptor writes into an empty DIR/name from now on; returns a copy of what it was.
static int redirect(const TinyRun *r, int fd, const char *name) {
    char *path = tiny_path(r, name);
    fflush(NULL);
    int old = dup(fd), file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (old < 0 || file < 0 || dup2(file, fd) < 0) die("%s: cannot redirect", path);
    close(file);
    mem_free(path);
    return old;
}

static void collect(const TinyRun *r, const char *name, Buf *to) {
    char *path = tiny_path(r, name);
    append_file(path, to);
    mem_free(path);
}

bool tiny_train(const TinyRun *r, const Config *c, const Ops *ops, RunStart start, Buf *said,
                Error *err) {
    int old = redirect(r, STDERR_FILENO, "said.txt");
    *err = (Error){{0}};
    bool ok = train_run(c, ops, start, err);
    fflush(stderr);
    dup2(old, STDERR_FILENO);
    close(old);
    collect(r, "said.txt", said);
    return ok;
}

void tiny_must_train(TestCtx *t, const TinyRun *r, const Config *c, const Ops *ops) {
    Error err;
    bool ok = tiny_train(r, c, ops, RUN_RESUME, NULL, &err);
    CHECK_MSG(t, ok, "%s", err.text);
}

void tiny_put_aside(const TinyRun *r, const char *name) {
    char *from = tiny_path(r, "run"), *to = tiny_path(r, name);
    if (rename(from, to)) die("%s: cannot be renamed", from);
    mem_free(from);
    mem_free(to);
}

static int wait_for(pid_t child) {
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) die("a child process cannot be run");
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

int tiny_train_child(const TinyRun *r, const Config *c, const Ops *ops, Buf *said) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        Error err;
        redirect(r, STDERR_FILENO, "said.txt");
        bool ok = train_run(c, ops, RUN_RESUME, &err);
        if (!ok) fprintf(stderr, "%s\n", err.text);
        fflush(NULL);
        _exit(ok ? 0 : 1);
    }
    int status = wait_for(child);
    collect(r, "said.txt", said);
    return status;
}

static const Ops *open_tiny(ElemType act, Error *err) {
    (void)act, (void)err;
    return tiny_ops();
}

int tiny_command(const TinyRun *r, CommandMain *command, const char *const *args, Buf *out,
                 Buf *said) {
    static const Device device = {"cpu", open_tiny};
    const Program program = {&device, 1};
    int n = 0;
    while (args[n])
        n++;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        redirect(r, STDOUT_FILENO, "out.txt");
        redirect(r, STDERR_FILENO, "said.txt");
        set_threads(1);
        int status = command(&program, n, (char **)(void *)args, false);
        fflush(NULL);
        _exit(status);
    }
    int status = wait_for(child);
    collect(r, "out.txt", out);
    collect(r, "said.txt", said);
    return status;
}

// --- what runs leave

static char *read_metrics(const TinyRun *r, const char *run) {
    char *dir = tiny_path(r, run), *path = path_join(dir, "metrics.jsonl"), *text;
    Error err;
    if (!file_read(path, 1 << 26, &text, NULL, &err)) die("%s", err.text);
    mem_free(path);
    mem_free(dir);
    return text;
}

// The text of a member's value up to the comma or brace behind it; false without it.
static bool member(const char *line, const char *key, char *value, size_t size) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(line, quoted);
    if (!at) return false;
    at += strlen(quoted);
    snprintf(value, size, "%.*s", (int)strcspn(at, ",}"), at);
    return true;
}

char *tiny_losses(const TinyRun *r, const char *run) {
    char *text = read_metrics(r, run), *rest = text, *line;
    Buf out = {0};
    buf_add(&out, "", 0);
    while ((line = strtok_r(rest, "\n", &rest))) {
        char step[32], loss[32];
        if (strstr(line, "\"event\"") || !member(line, "step", step, sizeof step) ||
            !member(line, "loss", loss, sizeof loss)) {
            continue;
        }
        buf_printf(&out, "%s:%s ", step, loss);
    }
    mem_free(text);
    return out.text;
}

int tiny_loss_values(const TinyRun *r, const char *run, double *out, int n) {
    char *text = tiny_losses(r, run);
    int found = 0;
    for (const char *at = text; found < n && (at = strchr(at, ':')); at++) {
        char value[32];
        snprintf(value, sizeof value, "%.*s", (int)strcspn(at + 1, " "), at + 1);
        if (parse_f64(value, &out[found])) found++;
    }
    mem_free(text);
    return found;
}

double tiny_last_metric(const TinyRun *r, const char *run, const char *key) {
    char *text = read_metrics(r, run), *rest = text, *line, value[32];
    double last = (double)NAN;
    while ((line = strtok_r(rest, "\n", &rest))) {
        if (strstr(line, "\"event\"") || !member(line, key, value, sizeof value)) continue;
        if (!parse_f64(value, &last)) last = (double)NAN;
    }
    mem_free(text);
    return last;
}

int tiny_events(const TinyRun *r, const char *run, const char *event, const char *words) {
    char *text = read_metrics(r, run), *rest = text, *line, key[64];
    int n = 0;
    snprintf(key, sizeof key, "\"event\":\"%s\"", event);
    while ((line = strtok_r(rest, "\n", &rest)))
        n += strstr(line, key) && strstr(line, words);
    mem_free(text);
    return n;
}

void tiny_same_file(TestCtx *t, const TinyRun *r, const char *a, const char *b) {
    char *path[2] = {tiny_path(r, a), tiny_path(r, b)}, *text[2];
    size_t n[2];
    Error err;
    bool ok = true;
    for (int i = 0; i < 2; i++) {
        text[i] = NULL;
        ok = file_read(path[i], 1 << 26, &text[i], &n[i], &err) && ok;
    }
    CHECK_MSG(t, ok, "%s", err.text);
    if (ok) {
        CHECK_MSG(t, n[0] == n[1] && memcmp(text[0], text[1], n[0]) == 0, "%s and %s differ", a, b);
    }
    for (int i = 0; i < 2; i++) {
        mem_free(text[i]);
        mem_free(path[i]);
    }
}
