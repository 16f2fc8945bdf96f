// prepare_info.c - prepare.json, the facts about a folder of shards that the shards do not hold.
#include "data/prepare.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

static void split_write(Buf *out, const char *name, const PrepareSplit *s) {
    buf_printf(
        out,
        "  \"%s\": {\"documents\": %lld, \"tokens\": %lld, \"bytes\": %lld, \"shards\": %d},\n",
        name, (long long)s->documents, (long long)s->tokens, (long long)s->bytes, s->shards);
}

void prepare_info_write(const PrepareInfo *info, Buf *out) {
    buf_printf(
        out,
        "{\n  \"version\": 1,\n"
        "  \"tokenizer\": {\"hash\": \"%016llx\", \"n_ids\": %d, \"eot\": %d, \"split\": \"%s\", "
        "\"learned_from_bytes\": %lld, \"learned_from_sample\": %s},\n",
        (unsigned long long)info->tokenizer_hash, info->n_ids, info->eot, info->split,
        (long long)info->learned_from, info->learned_from_sample ? "true" : "false");
    split_write(out, "train", &info->train);
    split_write(out, "val", &info->val);
    buf_printf(out,
               "  \"id_bytes\": %d,\n  \"empty_documents\": %lld,\n  \"binary_files\": %d\n}\n",
               info->id_bytes, (long long)info->empty_documents, info->binary_files);
}

// --- Reading

typedef struct Reader {
    const char *path;
    Error *err;
    bool ok;
} Reader;

// A whole number of 0 or more; doubles hold all up to 2^53.
static int64_t count(Reader *r, const cJSON *object, const char *key, double most) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    double v = cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (v >= 0 && v <= most && v == (double)(int64_t)v) return (int64_t)v;
    if (r->ok) error_set(r->err, "%s: '%s' is missing or no whole number from 0 on", r->path, key);
    r->ok = false;
    return 0;
}

static const double most_int = 2147483647, most_count = 9007199254740992;

static void split_read(Reader *r, const cJSON *json, const char *name, PrepareSplit *s) {
    const cJSON *object = cJSON_GetObjectItemCaseSensitive(json, name);
    s->documents = count(r, object, "documents", most_count);
    s->tokens = count(r, object, "tokens", most_count);
    s->bytes = count(r, object, "bytes", most_count);
    s->shards = (int)count(r, object, "shards", most_int);
}

static bool info_read(PrepareInfo *info, const char *path, const cJSON *json, Error *err) {
    Reader r = {path, err, true};
    const cJSON *tok = cJSON_GetObjectItemCaseSensitive(json, "tokenizer");
    const cJSON *hash = cJSON_GetObjectItemCaseSensitive(tok, "hash");
    const cJSON *split = cJSON_GetObjectItemCaseSensitive(tok, "split");
    char *end = NULL;
    *info = (PrepareInfo){0};
    if (cJSON_IsString(hash) && strlen(hash->valuestring) == 16) {
        info->tokenizer_hash = strtoull(hash->valuestring, &end, 16);
    }
    if (!end || *end || !cJSON_IsString(split) ||
        strlen(split->valuestring) >= sizeof info->split) {
        return error_set(
            err, "%s: is no prepare.json: 'tokenizer' lacks a 'hash' of 16 digits or a 'split'",
            path);
    }
    snprintf(info->split, sizeof info->split, "%s", split->valuestring);
    info->n_ids = (int)count(&r, tok, "n_ids", most_int);
    info->eot = (int)count(&r, tok, "eot", most_int);
    info->learned_from = count(&r, tok, "learned_from_bytes", most_count);
    info->learned_from_sample =
        cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(tok, "learned_from_sample"));
    split_read(&r, json, "train", &info->train);
    split_read(&r, json, "val", &info->val);
    info->id_bytes = (int)count(&r, json, "id_bytes", 4);
    info->empty_documents = count(&r, json, "empty_documents", most_count);
    info->binary_files = (int)count(&r, json, "binary_files", most_int);
    return r.ok;
}

bool prepare_info_load(PrepareInfo *info, const char *path, Error *err) {
    static const char name[] = "prepare.json";
    Buf file = {0};
    size_t n = strlen(path), m = sizeof name - 1;
    const char *slash = strrchr(path, '/');
    if (dir_exists(path))
        buf_printf(&file, "%s/%s", path, name);
    else if (n >= m && !strcmp(path + n - m, name))
        buf_printf(&file, "%s", path);
    else
        buf_printf(&file, "%.*s%s", slash ? (int)(slash - path) + 1 : 0, path, name);
    char *text = NULL;
    cJSON *json = NULL;
    bool ok = file_read(file.text, 1 << 20, &text, &n, err);
    if (ok) {
        json = cJSON_ParseWithLength(text, n);
        ok = json ? info_read(info, file.text, json, err)
                  : error_set(err, "%s: is not JSON", file.text);
    }
    cJSON_Delete(json);
    mem_free(text);
    buf_free(&file);
    return ok;
}
