// test_model_memory.c - gpt/model: which tensors a config means, what they are called, where they
// lie, and how much memory losses without training take.
#include "test/arrays.h"
#include "test/tiny_run.h"

#include <string.h>

enum { B = TINY_BATCH, T = TINY_SEQ, N = B * T };

static void tensors_are_named_aligned_and_layer_by_layer(TestCtx *t) {
    FOR_EACH_TINY(v) {
        Config c;
        tiny_config(&c, v->settings, "model.n_layer=3");
        TensorTable table;
        model_params(&table, &c, sizeof(float));
        int layer = -1;
        for (int i = 0; i < table.n; i++) {
            const Tensor *x = &table.tensor[i];
            char prefix[16] = "";
            if (x->layer >= 0) snprintf(prefix, sizeof prefix, "h.%d.", x->layer);
            CHECK_MSG(t, strncmp(x->name, prefix, strlen(prefix)) == 0, "%s", x->name);
            CHECK_MSG(t, tensor_find(&table, x->name) == i, "%s stands twice", x->name);
            CHECK_MSG(t, x->spec.join || x->bytes_at % 256 == 0, "%s", x->name);
            // wte (and wpe), then the layers in order, then the final norm and the head.
            CHECK_MSG(t, x->layer == layer || x->layer == layer + 1 || (x->layer < 0 && layer == 2),
                      "%s", x->name);
            layer = x->layer < 0 && layer == 2 ? 2 : x->layer;
            CHECK_MSG(
                t, spec_rows(&x->spec) >= x->spec.dim[0] && spec_cols(&x->spec) >= x->spec.dim[1],
                "%s", x->name);
        }
        CHECK(t, tensor_find(&table, "wte") == 0 && layer == 2);
        CHECK(t, tensor_find(&table, "h.2.mlp.c_proj") > 0);
        CHECK_MSG(t, (tensor_find(&table, "lm_head") > 0) != c.model.tied_embeddings, "%s",
                  v->label);
        tensor_table_free(&table);
    }
}

static void tensors_go_in_and_come_out(TestCtx *t) {
    FOR_EACH_TINY(v) {
        Config c;
        tiny_config(&c, v->settings, NULL);
        Model *m = tiny_model(&c, true);
        for (int i = 0; i < m->params.n; i++) {
            size_t n = spec_logical(&m->params.tensor[i].spec);
            float *in = mem_alloc(n, sizeof(float)), *out = mem_alloc(n, sizeof(float));
            test_noise(in, n, (uint64_t)i, 1);
            model_set_tensor(m, i, in);
            model_get_tensor(m, i, out);
            CHECK_SAME_BITS(t, in, out, n * sizeof(float));
            mem_free(in);
            mem_free(out);
        }
        model_free(m);
    }
}

static size_t allocated;

static void *hook_alloc(size_t bytes) {
    allocated += bytes;
    return ops_cpu()->alloc(bytes);
}

// Losses of a model that is not trained need the activations of one layer, and are the same.
static void losses_alone_need_one_layer(TestCtx *t) {
    FOR_EACH_TINY(v) {
        Config c;
        tiny_config(&c, v->settings, "model.n_layer=6");
        Model *full = tiny_model(&c, true);
        Ops ops = *ops_cpu();
        int ids[N + 1];
        float trained[N], untrained[N];
        ops.alloc = hook_alloc;
        tiny_ids(ids, N + 1, TINY_VOCAB, 11);
        model_alloc_acts(full, B, T);
        model_losses(full, ids, ids + 1, trained);
        Model *m = model_create(&c, &ops, false);
        model_init(m, 1);
        allocated = 0;
        model_alloc_acts(m, B, T);
        size_t six = allocated, most = model_acts_bytes(&m->cfg, &ops, B, T);
        model_losses(m, ids, ids + 1, untrained);
        CHECK_CLOSE(t, untrained, trained, .what = v->label, .n = N, .rel_tol = 1e-6);
        CHECK_MSG(t, six < most / 2, "%s: %zu bytes, training %zu", v->label, six, most);
        tiny_config(&c, v->settings, "model.n_layer=1");
        Model *one = model_create(&c, &ops, false);
        allocated = 0;
        model_alloc_acts(one, B, T);
        CHECK_MSG(t, six == allocated, "%s: %zu bytes for 6 layers, %zu for 1", v->label, six,
                  allocated);
        model_free(one);
        model_free(m);
        model_free(full);
    }
}

TEST_MAIN({"tensors_are_named_aligned_and_layer_by_layer",
           tensors_are_named_aligned_and_layer_by_layer},
          {"tensors_go_in_and_come_out", tensors_go_in_and_come_out},
          {"losses_alone_need_one_layer", losses_alone_need_one_layer})
