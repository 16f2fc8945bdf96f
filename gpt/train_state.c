// train_state.c - a run's tensors and counters to and from its directory.
#include "gpt/train.h"

#include <string.h>

static void fetch_param(void *ctx, int i, float *logical) {
    optim_get_master(((Trainer *)ctx)->opt, i, logical);
}

static void store_param(void *ctx, int i, const float *logical) {
    Trainer *t = ctx;
    model_set_tensor(t->m, i, logical);
    optim_set_master(t->opt, i, logical);
}

static void fetch_state(void *ctx, int i, float *logical) {
    optim_get_tensor(((Trainer *)ctx)->opt, i, logical);
}

static void store_state(void *ctx, int i, const float *logical) {
    optim_set_tensor(((Trainer *)ctx)->opt, i, logical);
}

static CheckpointPart model_part(Trainer *t) {
    const TensorTable *table = &t->m->params;
    CheckpointTensor *rows = mem_alloc((size_t)table->n, sizeof *rows);
    for (int i = 0; i < table->n; i++) {
        snprintf(rows[i].name, sizeof rows[i].name, "%s", table->tensor[i].name);
        rows[i].spec = &table->tensor[i].spec;
        rows[i].index = i;
    }
    return (CheckpointPart){
        .tensor = rows, .n = table->n, .ctx = t, .fetch = fetch_param, .store = store_param};
}

// Masters are the model's own tensors in the file, so they are left out here.
static CheckpointPart optimizer_part(Trainer *t) {
    int n = optim_n_tensors(t->opt), kept = 0;
    CheckpointTensor *rows = mem_alloc((size_t)n, sizeof *rows);
    for (int i = 0; i < n; i++) {
        const char *name = optim_tensor_name(t->opt, i);
        if (strncmp(name, "master.", 7) == 0) continue;
        CheckpointTensor *row = &rows[kept++];
        snprintf(row->name, sizeof row->name, "%s", name);
        row->spec = optim_tensor_spec(t->opt, i);
        row->index = i;
    }
    return (CheckpointPart){
        .tensor = rows, .n = kept, .ctx = t, .fetch = fetch_state, .store = store_state};
}

bool train_save(Trainer *t, Error *err) {
    CheckpointPart model = model_part(t), optimizer = optimizer_part(t);
    char *config = config_print(&t->cfg);
    bool ok = checkpoint_save(t->cfg.checkpoint.dir, &t->n, &model, &optimizer, config, err);
    if (ok) t->saved_step = t->n.step;
    ok = ok && checkpoint_prune(t->cfg.checkpoint.dir, t->cfg.checkpoint.keep, err);
    mem_free(config);
    mem_free((void *)model.tensor);
    mem_free((void *)optimizer.tensor);
    return ok;
}

bool train_restore(Trainer *t, const char *checkpoint_dir, Error *err) {
    CheckpointPart model = model_part(t), optimizer = optimizer_part(t);
    bool ok = checkpoint_load(checkpoint_dir, &model, &optimizer, err);
    mem_free((void *)model.tensor);
    mem_free((void *)optimizer.tensor);
    if (ok) model_prepare(t->m);
    return ok;
}
