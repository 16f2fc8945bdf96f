// load.c - see load.h.
#include "gpt/load.h"

#include "gpt/checkpoint.h"

#include <string.h>

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

// The folder that a path lies in, "." when it names none; caller frees.
static char *parent(const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    while (n > 0 && path[n - 1] != '/')
        n--;
    if (n == 0) return str_copy(".");
    char *p = str_copy(path);
    p[n > 1 ? n - 1 : 1] = 0;
    return p;
}

// The model file that path means; warns about damaged checkpoints that were passed over.
static char *model_file(const char *path, Error *err) {
    if (ends_with(path, ".safetensors")) return str_copy(path);
    if (!dir_exists(path)) {
        error_set(err, "%s: no such run directory, checkpoint or .safetensors file", path);
        return NULL;
    }
    CheckpointFound found;
    char *file = NULL;
    if (checkpoint_find(path, CHECKPOINT_MODEL_ONLY, &found, err)) {
        if (found.notes.n) warn("%s", found.notes.text);
        if (found.dir)
            file = path_join(found.dir, CHECKPOINT_MODEL);
        else
            error_set(err, "%s: holds no checkpoint; train writes them", path);
    }
    checkpoint_found_free(&found);
    return file;
}

static bool read_config(Config *c, const char *file, Error *err) {
    char *json = checkpoint_config(file, err);
    if (!json) return false;
    bool ok = config_parse(c, json, file, err);
    mem_free(json);
    return ok;
}

bool loaded_config(Config *c, const char *path, Error *err) {
    char *file = model_file(path, err);
    bool ok = file && read_config(c, file, err) && config_finish(c, err);
    mem_free(file);
    return ok;
}

// tokenizer.json beside the model file or one folder above it; none is no error.
static bool load_tokenizer(Loaded *l, Error *err) {
    char *dir = parent(l->model_path), *up = path_join(dir, "..");
    char *beside = path_join(dir, "tokenizer.json"), *above = path_join(up, "tokenizer.json");
    const char *found = file_exists(beside) ? beside : file_exists(above) ? above : NULL;
    if (found) l->tok = tokenizer_load(found, err);
    bool ok = !found || l->tok;
    mem_free(dir);
    mem_free(up);
    mem_free(beside);
    mem_free(above);
    return ok;
}

static void store(void *ctx, int index, const float *logical) {
    model_set_tensor(ctx, index, logical);
}

static bool load_weights(Loaded *l, Error *err) {
    const TensorTable *t = &l->m->params;
    CheckpointTensor *rows = mem_alloc((size_t)t->n, sizeof *rows);
    for (int i = 0; i < t->n; i++) {
        snprintf(rows[i].name, sizeof rows[i].name, "%s", t->tensor[i].name);
        rows[i].spec = &t->tensor[i].spec;
        rows[i].index = i;
    }
    CheckpointPart part = {.tensor = rows, .n = t->n, .ctx = l->m, .store = store};
    bool ok = checkpoint_load_file(l->model_path, &part, err);
    mem_free(rows);
    if (ok) model_prepare(l->m);
    return ok;
}

bool loaded_open(Loaded *l, const char *path, const char *const *overrides, int n, const Program *p,
                 const char *device, Error *err) {
    *l = (Loaded){0};
    Config c;
    l->model_path = model_file(path, err);
    bool ok = l->model_path && read_config(&c, l->model_path, err);
    c.train.threads = 0;  // a matter of this machine, not of the one that trained
    for (int i = 0; ok && i < n; i++)
        ok = config_override(&c, overrides[i], err);
    ok = ok && config_finish(&c, err);
    // An override may change what no tensor depends on; the others fail by a tensor's name or
    // shape.
    const Ops *ops = ok ? program_ops(p, device, (ElemType)c.train.compute, err) : NULL;
    if (ops) {
        program_threads(c.train.threads);
        l->m = model_create(&c, ops, false);
        ok = load_weights(l, err) && load_tokenizer(l, err);
    }
    return ok && ops;
}

void loaded_close(Loaded *l) {
    model_free(l->m);
    tokenizer_free(l->tok);
    mem_free(l->model_path);
    *l = (Loaded){0};
}
