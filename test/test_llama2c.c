// test_llama2c.c - a trained llama2.c model gives the greedy tokens that an independent numpy
// forward gave (golden/stories.py), through the full forward and through the cache.
#include "test/llama2c.h"
#include "test/test.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

static int argmax(const float *x, int n) {
    int best = 0;
    for (int i = 1; i < n; i++) {
        if (x[i] > x[best]) best = i;
    }
    return best;
}

static void check_run(TestCtx *t, Model *m, const cJSON *run) {
    const cJSON *prompt = cJSON_GetObjectItem(run, "prompt"),
                *want = cJSON_GetObjectItem(run, "ids");
    int n_prompt = cJSON_GetArraySize(prompt), n = cJSON_GetArraySize(want);
    int *ids = mem_alloc((size_t)(n_prompt + n), sizeof(int));
    for (int i = 0; i < n_prompt; i++)
        ids[i] = cJSON_GetArrayItem(prompt, i)->valueint;
    float *logits = mem_alloc((size_t)m->V, sizeof(float));
    Cache *cache = cache_create(m, 1, n_prompt + n, n_prompt);
    model_extend(m, cache, ids, n_prompt, &n_prompt, logits, false);
    for (int i = 0, one = 1; i < n; i++) {
        int id = argmax(logits, m->V), expected = cJSON_GetArrayItem(want, i)->valueint;
        CHECK_MSG(t, id == expected, "token %d is %d, expected %d", i, id, expected);
        if (id != expected) break;
        ids[n_prompt + i] = id;
        model_extend(m, cache, &id, 1, &one, logits, false);
    }
    cache_free(m, cache);
    int T = n_prompt + n;
    float *all = mem_alloc((size_t)T * (size_t)m->V, sizeof(float));
    model_alloc_acts(m, 1, T);
    model_logits(m, ids, all);
    for (int i = 0; i < n; i++) {
        int id = argmax(all + (size_t)(n_prompt + i - 1) * (size_t)m->V, m->V);
        CHECK_MSG(t, id == ids[n_prompt + i], "full forward: token %d is %d", i, id);
    }
    mem_free(all);
    mem_free(logits);
    mem_free(ids);
}

static void stories_follow_the_independent_forward(TestCtx *t) {
    char *path = test_data("models/stories260K.bin");
    if (!path) {
        test_skip(t, "models/stories260K.bin is not among the optional test data");
        return;
    }
    Error err = {0};
    char *json;
    size_t n;
    if (!file_read("test/golden/fixtures/stories260K.json", 1 << 20, &json, &n, &err))
        die("%s", err.text);
    Model *m = llama2c_load(path, ops_cpu(), &err);
    CHECK_MSG(t, m, "%s", err.text);
    cJSON *fixture = cJSON_Parse(json), *run;
    if (m) {
        cJSON_ArrayForEach(run, cJSON_GetObjectItem(fixture, "runs")) check_run(t, m, run);
    }
    cJSON_Delete(fixture);
    model_free(m);
    mem_free(json);
    mem_free(path);
}

TEST_MAIN({"stories_follow_the_independent_forward", stories_follow_the_independent_forward})
