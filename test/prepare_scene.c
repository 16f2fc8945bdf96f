// prepare_scene.c - see prepare_scene.h.
#define _POSIX_C_SOURCE 200809L
#include "test/prepare_scene.h"

#include "data/shard.h"
#include "test/small_tokenizer.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

void scene_start(PrepareScene *s) {
    Error err;
    *s = (PrepareScene){.dir = test_temp_dir(), .o = prepare_defaults()};
    s->in = path_join(s->dir, "in");
    s->out = path_join(s->dir, "out");
    s->tokenizer = path_join(s->dir, "small.json");
    Tokenizer *tok = small_tokenizer();
    if (!tokenizer_save(tok, s->tokenizer, &err) || !dir_make(s->in, &err)) die("%s", err.text);
    tokenizer_free(tok);
    s->inputs[0] = s->in;
    s->o.inputs = s->inputs;
    s->o.n_inputs = 1;
    s->o.tokenizer = s->tokenizer;
    s->o.out = s->out;
    s->o.n_threads = 1;
    s->o.info = &s->info;
}

void scene_end(PrepareScene *s) {
    test_remove_dir(s->dir);
    mem_free(s->dir);
    mem_free(s->in);
    mem_free(s->out);
    mem_free(s->tokenizer);
}

void scene_file(const PrepareScene *s, const char *name, const char *bytes, size_t n) {
    char *path = path_join(s->in, name), *slash = strrchr(path, '/');
    Error err;
    *slash = 0;
    bool ok = dir_make(path, &err);
    *slash = '/';
    if (!ok || !file_write_atomic(path, bytes, n, &err)) die("%s", err.text);
    mem_free(path);
}

void scene_text(const PrepareScene *s, const char *name, const char *text) {
    scene_file(s, name, text, strlen(text));
}

void scene_run(TestCtx *t, PrepareScene *s) {
    Error err = {{0}};
    s->info = (PrepareInfo){0};
    CHECK_MSG(t, prepare_run(&s->o, &err), "%s", err.text);
}

void scene_refused(TestCtx *t, PrepareScene *s, const char *words) {
    Error err = {{0}};
    CHECK_MSG(t, !prepare_run(&s->o, &err), "no error, expected '%s'", words);
    CHECK_ERROR(t, err, words);
    CHECK(t, !dir_exists(s->out));
}

Buf scene_tokens(TestCtx *t, const PrepareScene *s, const char *split) {
    Error err = {{0}};
    Tokenizer *tok = tokenizer_load(s->out, &err);
    Buf text = {0};
    buf_add(&text, "", 0);
    for (int k = 0; tok; k++) {
        Buf path = {0};
        Shard shard;
        buf_printf(&path, "%s/%s_%06d.bin", s->out, split, k);
        bool there = file_exists(path.text), ok = there && shard_open(&shard, path.text, &err);
        CHECK_MSG(t, ok || !there, "%s", err.text);
        buf_free(&path);
        if (!ok) break;
        int *ids = mem_alloc((size_t)shard.n_tokens, sizeof *ids);
        CHECK_MSG(t, shard_read(&shard, 0, shard.n_tokens, tokenizer_n_ids(tok), ids, &err), "%s",
                  err.text);
        for (int64_t i = 0; i < shard.n_tokens; i++) {
            size_t n;
            const char *bytes = tokenizer_bytes(tok, ids[i], &n);
            if (ids[i] == tokenizer_eot(tok))
                buf_add(&text, "|", 1);
            else
                buf_add(&text, bytes, n);
        }
        mem_free(ids);
        shard_close(&shard);
    }
    CHECK_MSG(t, tok, "%s", err.text);
    tokenizer_free(tok);
    return text;
}

void scene_check(TestCtx *t, const PrepareScene *s, const char *split, const char *want) {
    Buf got = scene_tokens(t, s, split);
    CHECK_MSG(t, got.n == strlen(want) && !strcmp(got.text, want),
              "%s: '%.200s', expected '%.200s'", split, got.text, want);
    buf_free(&got);
}

static int by_name(const void *a, const void *b) {
    return strcmp(a, b);
}

char *scene_names(const PrepareScene *s) {
    char names[64][256];
    size_t n = 0;
    DIR *dir = opendir(s->out);
    for (struct dirent *e; dir && n < 64 && (e = readdir(dir));) {
        if (*e->d_name != '.') snprintf(names[n++], sizeof names[0], "%s", e->d_name);
    }
    if (dir) closedir(dir);
    qsort(names, n, sizeof names[0], by_name);
    Buf b = {0};
    buf_add(&b, "", 0);
    for (size_t i = 0; i < n; i++)
        buf_printf(&b, "%s ", names[i]);
    return b.text;
}
