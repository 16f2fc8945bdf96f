// test_muon_batches.c - which matrices go through Newton-Schulz together, and that it does not
// show.
#include "gpt/muon.h"
#include "gpt/optim.h"
#include "test/arrays.h"
#include "test/tiny_run.h"

#include <string.h>

// Every Muon tensor once, only like with like, within the scratch that was counted.
static void check_batches(TestCtx *t, const char *label, const Config *c, const Ops *ops,
                          int want) {
    TensorTable table;
    MuonBatches b;
    model_params(&table, c, ops->elem_size);
    muon_batches(&b, &table, c, ops);
    int *seen = mem_alloc((size_t)table.n, sizeof(int));
    for (int i = 0; i < b.n; i++) {
        const TensorSpec *first = &table.tensor[b.order[b.batch[i].first]].spec;
        MuonGroup g = muon_group(first, c);
        g.n = b.batch[i].n;
        CHECK(t, (size_t)g.n * spec_stored(first) + muon_scratch(&g) <= b.elements);
        for (int k = 0; k < g.n; k++) {
            int row = b.order[b.batch[i].first + k];
            MuonGroup h = muon_group(&table.tensor[row].spec, c);
            seen[row]++;
            CHECK_MSG(t, h.units == g.units && h.rows == g.rows && h.cols == g.cols, "%s: %s",
                      label, table.tensor[row].name);
        }
    }
    for (int i = 0; i < table.n; i++) {
        const TensorSpec *s = &table.tensor[i].spec;
        bool muon = c->optim.group[s->kind].optimizer == OPTIM_MUON;
        CHECK_MSG(t, seen[i] == muon, "%s: %s %d times", label, table.tensor[i].name, seen[i]);
    }
    CHECK_MSG(t, !want || b.n == want, "%s: %d batches, expected %d", label, b.n, want);
    mem_free(seen);
    muon_batches_free(&b);
    tensor_table_free(&table);
}

static void like_goes_with_like(TestCtx *t) {
    FOR_EACH_TINY(v) {
        Config c;
        Ops ops = *ops_cpu();
        tiny_config(&c, v->settings, "model.n_layer=3");
        check_batches(t, v->label, &c, &ops, 0);
        // Square projections of all layers and both matrices of the MLP: three shapes.
        bool mha = !strcmp(v->label, "mha");
        ops.busy_outputs = 1 << 30;
        check_batches(t, v->label, &c, &ops, mha ? 3 : 0);
        ops.busy_outputs = 1;  // one by one: 4 + 2 in each layer
        check_batches(t, v->label, &c, &ops, mha ? 18 : 0);
        ops.busy_outputs = 5 * 32 * 32;  // 12 squares as 4 + 4 + 4, 3 + 3 others
        check_batches(t, v->label, &c, &ops, mha ? 5 : 0);
    }
}

// How many go together does not show in the result.
static void batches_do_not_show(TestCtx *t) {
    FOR_EACH_TINY(v) {
        Config c;
        Ops ops[2] = {*ops_cpu(), *ops_cpu()};
        float *end[2];
        ops[0].busy_outputs = 1, ops[1].busy_outputs = 1 << 30;
        tiny_config(&c, v->settings, "model.n_layer=3");
        for (int k = 0; k < 2; k++) {
            set_threads(1);
            Model *m = model_create(&c, &ops[k], true);
            model_init(m, 1);
            Optimizer *o = optim_create(m);
            StepState state;
            model_step_begin(m);
            test_noise(m->grad_arena, m->params.elements, 7, 1);
            optim_step(o, 0, 1, &state);
            end[k] = mem_alloc(m->params.bytes, 1);
            memcpy(end[k], m->param_arena, m->params.bytes);
            if (k) CHECK_SAME_BITS(t, end[0], end[1], m->params.bytes);
            optim_free(o);
            model_free(m);
        }
        mem_free(end[0]);
        mem_free(end[1]);
    }
}

TEST_MAIN({"like_goes_with_like", like_goes_with_like},
          {"batches_do_not_show", batches_do_not_show})
