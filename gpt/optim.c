// optim.c - see optim.h.
#include "gpt/optim.h"

#include "gpt/muon.h"
#include "gpt/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct StateTensor {
    char name[TENSOR_NAME_MAX + 16];
    int tensor;
    float *data;  // stored form, device
} StateTensor;

struct Optimizer {
    Model *m;
    char *arena;
    size_t bytes;
    float **moment, **second, **master;  // per tensor; NULL where the tensor has none
    StateTensor *state;
    int n_state;
    MuonBatches muon;
    float *scratch;  // Muon: updates and Newton-Schulz work
};

static const OptimGroup *group_of(const Config *c, const TensorSpec *s) {
    return &c->optim.group[s->kind];
}

static bool has_master(const Config *c, const Ops *ops, const TensorSpec *s) {
    return s->type == TYPE_FX && ops->elem_size != sizeof(float) && c->optim.master == MASTER_F32;
}

bool optim_check(const Config *c, const Ops *ops, Error *err) {
    if (c->optim.master == MASTER_F32 || ops->elem_size != sizeof(float)) return true;
    return error_set(err,
                     "optim.master is none but the parameters on %s are fp32 and their own "
                     "masters: leave it at fp32, or use --device cuda with train.compute=bf16",
                     ops->name);
}

// Counts the arena, or places the tensors in it; work: elements of Muon's scratch.
static size_t layout(Optimizer *o, const TensorTable *t, const Config *c, const Ops *ops,
                     size_t work, char *base) {
    static const char *const prefix[] = {"adamw.m.", "adamw.v.", "muon.momentum.", "master."};
    size_t used = 0;
    for (int i = 0; i < t->n; i++) {
        const TensorSpec *s = &t->tensor[i].spec;
        bool muon = muon_takes(s, c), want[4] = {!muon, !muon, muon, has_master(c, ops, s)};
        for (int k = 0; k < 4; k++) {
            if (!want[k]) continue;
            size_t bytes = round_up(spec_stored(s) * sizeof(float), 256);
            if (base) {
                StateTensor *st = &o->state[o->n_state++];
                snprintf(st->name, sizeof st->name, "%s%s", prefix[k], t->tensor[i].name);
                st->tensor = i;
                st->data = (float *)(base + used);
                *(k == 1 ? &o->second[i] : k == 3 ? &o->master[i] : &o->moment[i]) = st->data;
            }
            used += bytes;
        }
    }
    if (base) o->scratch = (float *)(base + used);
    return used + work * sizeof(float);
}

size_t optim_bytes(const Config *c, const Ops *ops) {
    TensorTable t;
    MuonBatches muon;
    model_params(&t, c, ops->elem_size);
    muon_batches(&muon, &t, c, ops);
    size_t bytes = layout(NULL, &t, c, ops, muon.elements, NULL);
    muon_batches_free(&muon);
    tensor_table_free(&t);
    return bytes;
}

Optimizer *optim_create(Model *m) {
    Optimizer *o = mem_alloc(1, sizeof *o);
    size_t n = (size_t)m->params.n;
    o->m = m;
    o->moment = mem_alloc(n, sizeof(float *));
    o->second = mem_alloc(n, sizeof(float *));
    o->master = mem_alloc(n, sizeof(float *));
    o->state = mem_alloc(3 * n, sizeof(StateTensor));
    muon_batches(&o->muon, &m->params, &m->cfg, m->ops);
    o->bytes = layout(o, &m->params, &m->cfg, m->ops, o->muon.elements, NULL);
    o->arena = m->ops->alloc(o->bytes);
    layout(o, &m->params, &m->cfg, m->ops, o->muon.elements, o->arena);
    for (int i = 0; i < m->params.n; i++) {
        if (!o->master[i]) continue;
        float *values = mem_alloc(spec_logical(&m->params.tensor[i].spec), sizeof(float));
        model_get_tensor(m, i, values);
        optim_set_master(o, i, values);
        mem_free(values);
    }
    return o;
}

void optim_free(Optimizer *o) {
    if (!o) return;
    o->m->ops->free(o->arena);
    muon_batches_free(&o->muon);
    mem_free(o->moment);
    mem_free(o->second);
    mem_free(o->master);
    mem_free(o->state);
    mem_free(o);
}

static void *param_at(const Model *m, int i) {
    return m->param_arena + m->params.tensor[i].bytes_at;
}

static double width_scale(const Config *c) {
    return c->optim.lr_width_scale ? pow(c->model.n_embd / 768.0, -0.5) : 1;
}

// Of a tensor's rounding in this step, when it has no master.
static uint64_t round_key(const Model *m, int i, int64_t step) {
    return rng_u64(rng_key((uint64_t)m->cfg.train.seed, m->params.tensor[i].name), (uint64_t)step);
}

static void adamw_tensor(Optimizer *o, int i, int64_t step, double lr_factor) {
    Model *m = o->m;
    const TensorSpec *s = &m->params.tensor[i].spec;
    const OptimGroup *g = group_of(&m->cfg, s);
    AdamWArgs a = {.type = s->type,
                   .lr = (float)(g->lr * lr_factor * width_scale(&m->cfg)),
                   .beta1 = (float)g->beta1,
                   .beta2 = (float)g->beta2,
                   .eps = (float)g->eps,
                   .decay = (float)g->decay,
                   .correction1 = (float)(1 - pow(g->beta1, (double)(step + 1))),
                   .correction2 = (float)(1 - pow(g->beta2, (double)(step + 1))),
                   .round_key = round_key(m, i, step)};
    m->ops->adamw(param_at(m, i), o->master[i], o->moment[i], o->second[i],
                  m->grad_arena + m->params.tensor[i].offset, spec_stored(s), &a, m->state);
}

static void muon_batch(Optimizer *o, MuonBatch b, int64_t step, double lr_factor) {
    Model *m = o->m;
    const Config *c = &m->cfg;
    const int *tensor = o->muon.order + b.first;
    const TensorSpec *s = &m->params.tensor[tensor[0]].spec;
    const OptimGroup *og = group_of(c, s);
    size_t size = spec_stored(s), all = (size_t)b.n * size;
    MuonGroup g = muon_group(s, c);
    g.n = b.n;
    for (int k = 0; k < b.n; k++) {
        m->ops->muon_momentum(o->scratch + (size_t)k * size, o->moment[tensor[k]],
                              m->grad_arena + m->params.tensor[tensor[k]].offset, size,
                              (float)c->optim.muon_momentum, c->optim.muon_nesterov, m->state);
    }
    muon_orthogonalize(m->ops, o->scratch, o->scratch + all, &g, c->optim.muon_steps);
    double lr = og->lr * lr_factor;
    m->ops->scale_copy(o->scratch, o->scratch, all, (float)g.aspect);
    for (int k = 0; k < b.n; k++) {
        int i = tensor[k];
        m->ops->muon_apply(param_at(m, i), o->master[i], s->type, o->scratch + (size_t)k * size,
                           size, (float)lr, (float)og->decay, round_key(m, i, step), m->state);
    }
}

void optim_step(Optimizer *o, int64_t step, double lr_factor, StepState *out) {
    Model *m = o->m;
    const TensorTable *t = &m->params;
    for (int i = 0; i < t->n; i++) {
        m->ops->grad_sumsq(m->state, m->grad_arena + t->tensor[i].offset,
                           spec_stored(&t->tensor[i].spec), i);
    }
    m->ops->grad_finish(m->state, (float)m->cfg.optim.grad_clip);
    for (int i = 0; i < t->n; i++) {
        if (!muon_takes(&t->tensor[i].spec, &m->cfg)) adamw_tensor(o, i, step, lr_factor);
    }
    for (int i = 0; i < o->muon.n; i++)
        muon_batch(o, o->muon.batch[i], step, lr_factor);
    model_prepare(m);
    m->ops->download_bytes(out, m->state, sizeof *out);
}

int optim_n_tensors(const Optimizer *o) {
    return o->n_state;
}
const char *optim_tensor_name(const Optimizer *o, int i) {
    return o->state[i].name;
}

const TensorSpec *optim_tensor_spec(const Optimizer *o, int i) {
    return &o->m->params.tensor[o->state[i].tensor].spec;
}

static void get_stored(const Optimizer *o, const float *device, const TensorSpec *s,
                       float *logical) {
    float *stored = mem_alloc(spec_stored(s), sizeof(float));
    o->m->ops->download_bytes(stored, device, spec_stored(s) * sizeof(float));
    tensor_to_logical(logical, stored, s);
    mem_free(stored);
}

static void set_stored(const Optimizer *o, float *device, const TensorSpec *s,
                       const float *logical) {
    float *stored = mem_alloc(spec_stored(s), sizeof(float));
    tensor_to_stored(stored, logical, s);
    o->m->ops->upload_bytes(device, stored, spec_stored(s) * sizeof(float));
    o->m->ops->sync();
    mem_free(stored);
}

void optim_get_tensor(const Optimizer *o, int i, float *logical) {
    get_stored(o, o->state[i].data, optim_tensor_spec(o, i), logical);
}

void optim_set_tensor(Optimizer *o, int i, const float *logical) {
    set_stored(o, o->state[i].data, optim_tensor_spec(o, i), logical);
}

void optim_set_master(Optimizer *o, int tensor, const float *logical) {
    if (!o->master[tensor]) return;
    set_stored(o, o->master[tensor], &o->m->params.tensor[tensor].spec, logical);
}

void optim_get_master(const Optimizer *o, int tensor, float *logical) {
    if (!o->master[tensor])
        model_get_tensor(o->m, tensor, logical);
    else
        get_stored(o, o->master[tensor], &o->m->params.tensor[tensor].spec, logical);
}
