// checkpoint_state.c - state.json and the names of checkpoints.
//
// state.json:  format     "train_gpt checkpoint"
//              version    1
//              step, samples, tokens, skipped_steps, skips_in_row, rollbacks   integers below 2^53
//              tokenizer_hash, data_fingerprint                                16 hex digits
//              files      for each file its bytes and hash (hash64, 16 hex digits)
//              check      hash64 of the text before this key's quote
// All fields are required; unknown ones are ignored.
#include "gpt/checkpoint_parts.h"

#include "gpt/dirs.h"
#include "gpt/hash64.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define STATE_FORMAT "train_gpt checkpoint"
enum { STATE_VERSION = 1, STATE_MAX_BYTES = 1 << 20 };

typedef struct Field {
    const char *key;
    size_t at;    // in CheckpointState
    bool is_hex;  // uint64_t, else int64_t
} Field;

#define FIELD(name, hex)                                                                           \
    { #name, offsetof(CheckpointState, name), hex }
static const Field fields[] = {
    FIELD(step, false),          FIELD(samples, false),         FIELD(tokens, false),
    FIELD(skipped_steps, false), FIELD(skips_in_row, false),    FIELD(rollbacks, false),
    FIELD(tokenizer_hash, true), FIELD(data_fingerprint, true),
};
enum { N_FIELDS = sizeof fields / sizeof fields[0] };

const char *checkpoint_file_name(int file) {
    static const char *const name[CHECKPOINT_FILES] = {CHECKPOINT_MODEL, CHECKPOINT_OPTIMIZER};
    return name[file];
}

void checkpoint_record_print(Buf *b, const CheckpointRecord *r) {
    size_t start = b->n;
    buf_printf(b, "{\n  \"format\": \"%s\",\n  \"version\": %d,\n", STATE_FORMAT, STATE_VERSION);
    for (int i = 0; i < N_FIELDS; i++) {
        const char *at = (const char *)&r->state + fields[i].at;
        uint64_t v;
        memcpy(&v, at, sizeof v);
        if (fields[i].is_hex)
            buf_printf(b, "  \"%s\": \"%016" PRIx64 "\",\n", fields[i].key, v);
        else
            buf_printf(b, "  \"%s\": %" PRId64 ",\n", fields[i].key, (int64_t)v);
    }
    buf_printf(b, "  \"files\": {");
    for (int i = 0; i < CHECKPOINT_FILES; i++) {
        buf_printf(b, "%s\n    \"%s\": {\"bytes\": %" PRIu64 ", \"hash\": \"%016" PRIx64 "\"}",
                   i ? "," : "", checkpoint_file_name(i), r->file[i].bytes, r->file[i].hash);
    }
    buf_printf(b, "\n  },\n  ");
    uint64_t check = hash64_of(b->text + start, b->n - start);
    buf_printf(b, "\"check\": \"%016" PRIx64 "\"\n}\n", check);
}

static bool get_hex(const cJSON *object, const char *key, uint64_t *out) {
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!cJSON_IsString(v) || strlen(v->valuestring) != 16) return false;
    if (strspn(v->valuestring, "0123456789abcdef") != 16) return false;
    *out = strtoull(v->valuestring, NULL, 16);
    return true;
}

// cJSON keeps numbers as doubles: exact below 2^53.
static bool get_count(const cJSON *object, const char *key, int64_t *out) {
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!cJSON_IsNumber(v) || !(v->valuedouble >= 0 && v->valuedouble < 0x1p53)) return false;
    *out = (int64_t)v->valuedouble;
    return (double)*out == v->valuedouble;
}

// The key that is missing or has a wrong value, or NULL.
static const char *read_fields(CheckpointRecord *r, const cJSON *json) {
    for (int i = 0; i < N_FIELDS; i++) {
        char *at = (char *)&r->state + fields[i].at;
        int64_t count;
        uint64_t hex;
        if (fields[i].is_hex ? !get_hex(json, fields[i].key, &hex)
                             : !get_count(json, fields[i].key, &count))
            return fields[i].key;
        memcpy(at, fields[i].is_hex ? (void *)&hex : (void *)&count, 8);
    }
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(json, "files");
    for (int i = 0; i < CHECKPOINT_FILES; i++) {
        const cJSON *f = cJSON_GetObjectItemCaseSensitive(files, checkpoint_file_name(i));
        int64_t bytes;
        if (!get_count(f, "bytes", &bytes) || !get_hex(f, "hash", &r->file[i].hash))
            return checkpoint_file_name(i);
        r->file[i].bytes = (uint64_t)bytes;
    }
    return NULL;
}

// Whether the text ends with the hash of what comes before.
static bool check_agrees(const char *text, size_t n) {
    static const char sample[] = "\"check\": \"0123456789abcdef\"\n}\n";
    size_t tail = strlen(sample);
    char want[64];
    if (n < tail) return false;
    snprintf(want, sizeof want, "\"check\": \"%016" PRIx64 "\"\n}\n", hash64_of(text, n - tail));
    return memcmp(text + n - tail, want, tail) == 0;
}

static bool parse_record(CheckpointRecord *r, const char *path, const char *text, size_t n,
                         Error *err) {
    cJSON *json = cJSON_Parse(text);
    const cJSON *format = cJSON_GetObjectItemCaseSensitive(json, "format");
    int64_t version = 0;
    bool ok = true;
    if (!cJSON_IsString(format) || strcmp(format->valuestring, STATE_FORMAT) != 0 ||
        !get_count(json, "version", &version)) {
        ok = error_set(err, "%s: damaged, or not the state of a checkpoint", path);
    } else if (version != STATE_VERSION) {
        ok = error_set(err, "%s: has format version %" PRId64 ", this program reads version %d",
                       path, version, STATE_VERSION);
    } else if (!check_agrees(text, n)) {
        ok = error_set(err, "%s: damaged (its own hash does not agree)", path);
    } else {
        const char *bad = read_fields(r, json);
        if (bad) ok = error_set(err, "%s: '%s' is missing or has a wrong value", path, bad);
    }
    cJSON_Delete(json);
    return ok;
}

bool checkpoint_record_read(CheckpointRecord *r, const char *dir, Error *err) {
    char *path = path_join(dir, CHECKPOINT_STATE), *text;
    size_t n;
    *r = (CheckpointRecord){0};
    bool ok = file_read(path, STATE_MAX_BYTES, &text, &n, err);
    if (ok) {
        ok = parse_record(r, path, text, n, err);
        mem_free(text);
    }
    mem_free(path);
    return ok;
}

void checkpoint_name(char name[32], int64_t step) {
    assert(step >= 0);
    snprintf(name, 32, "step-%08" PRId64, step);
}

int64_t checkpoint_step(const char *name) {
    int64_t step;
    char again[32];
    if (strncmp(name, "step-", 5) != 0 || !parse_i64(name + 5, &step) || step < 0) return -1;
    checkpoint_name(again, step);
    return strcmp(name, again) == 0 ? step : -1;
}

int64_t checkpoint_latest(const char *run_dir) {
    char *path = path_join(run_dir, "latest"), *text;
    int64_t step = -1;
    size_t n;
    Error ignored;
    if (file_read(path, 256, &text, &n, &ignored)) {
        text[strcspn(text, "\r\n")] = 0;
        step = checkpoint_step(text);
        mem_free(text);
    }
    mem_free(path);
    return step;
}

static int descending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

bool checkpoint_steps(StepList *l, const char *run_dir, Error *err) {
    DirList dir;
    *l = (StepList){0};
    if (!dir_list(&dir, run_dir, err)) return false;
    l->step = mem_alloc((size_t)dir.n, sizeof *l->step);
    for (int i = 0; i < dir.n; i++) {
        int64_t step = checkpoint_step(dir.name[i]);
        if (step >= 0) l->step[l->n++] = step;
    }
    qsort(l->step, (size_t)l->n, sizeof *l->step, descending);
    dir_list_free(&dir);
    return true;
}
