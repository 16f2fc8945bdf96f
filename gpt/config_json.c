// config_json.c - settings from JSON files and texts, and back to JSON.
// Strict on purpose: a key nobody knows, a key given twice, a number out of range or a comment is
// an error with a name and a place, never a guess. "base" names a file that is read first.
#define _POSIX_C_SOURCE 200809L
#include "gpt/config_table.h"

#include <cjson/cJSON.h>

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_BYTES = 1 << 20, MAX_NESTING = 16, MAX_BASES = 8, MAX_KEY = 100 };

// --- text to tree

// A line is all: cJSON's position can be a character off.
static bool syntax_error(const char *text, size_t at, const char *where, const char *what,
                         Error *err) {
    int line = 1;
    for (size_t i = 0; i < at; i++)
        line += text[i] == '\n';
    return error_set(err, "%s:%d: %s", where, line, what);
}

// What cJSON would accept, cut short or recurse into: NUL bytes, \u0000 and endless brackets.
static bool scan(const char *text, size_t n, const char *where, Error *err) {
    int depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < n; i++) {
        if (!text[i]) return syntax_error(text, i, where, "a NUL byte is not valid JSON", err);
        if (quoted && text[i] == '\\') {
            if (n - i >= 6 && memcmp(text + i, "\\u0000", 6) == 0)
                return syntax_error(text, i, where, "\\u0000 cannot be part of a setting", err);
            i++;
            if (i < n && !text[i]) i--;  // the NUL is found in the next round
            continue;
        }
        if (text[i] == '"') quoted = !quoted;
        if (quoted) continue;
        if (text[i] == '{' || text[i] == '[') depth++;
        if (text[i] == '}' || text[i] == ']') depth--;
        if (depth > MAX_NESTING)
            return syntax_error(text, i, where, "nested deeper than the 16 levels allowed", err);
    }
    return true;
}

// NULL with a sentence, or an object that the caller deletes.
static cJSON *parse_object(const char *text, size_t n, const char *where, Error *err) {
    if (!scan(text, n, where, err)) return NULL;
    const char *end = NULL;
    cJSON *root = cJSON_ParseWithLengthOpts(text, n + 1, &end, true);
    if (!root) {
        size_t at = end ? min_size((size_t)(end - text), n) : 0;
        const char *what = "not valid JSON";
        if (at == n)
            what = "not valid JSON: the text ends too early";
        else if (text[at] == '/' || (at && text[at - 1] == '/'))
            what = "not valid JSON: comments are not allowed";
        syntax_error(text, at, where, what, err);
        return NULL;
    }
    if (cJSON_IsObject(root)) return root;
    error_set(err, "%s: a config should be a JSON object {...}", where);
    cJSON_Delete(root);
    return NULL;
}

// --- tree to settings

static bool set_value(Config *c, const Setting *s, const cJSON *v, const char *where, Error *err) {
    if (cJSON_IsNumber(v)) return setting_set_number(s, c, v->valuedouble, where, err);
    if (cJSON_IsString(v)) return setting_set_text(s, c, v->valuestring, where, err);
    if (cJSON_IsBool(v) && s->type == SETTING_BOOL) {
        setting_store(s, c, cJSON_IsTrue(v));
        return true;
    }
    const char *found = "an object";
    if (cJSON_IsBool(v))
        found = cJSON_IsTrue(v) ? "true" : "false";
    else if (cJSON_IsNull(v))
        found = "null";
    else if (cJSON_IsArray(v))
        found = "a list";
    return setting_refuse(s, where, found, err);
}

static bool check_unique(const cJSON *object, const cJSON *item, const char *key, const char *where,
                         Error *err) {
    for (const cJSON *other = object->child; other != item; other = other->next) {
        if (strcmp(other->string, item->string) == 0)
            return error_set(err, "%s: %.100s is given twice", where, key);
    }
    return true;
}

// Keys of one object; the recursion ends because sections in the table are at most two deep.
static bool set_object(Config *c, const cJSON *object, const char *prefix, const char *where,
                       Error *err) {
    for (const cJSON *item = object->child; item; item = item->next) {
        if (!*prefix && strcmp(item->string, "base") == 0) {
            if (!check_unique(object, item, "base", where, err)) return false;
            continue;
        }
        char key[2 * MAX_KEY];
        snprintf(key, sizeof key, "%s%s%.*s", prefix, *prefix ? "." : "", MAX_KEY, item->string);
        // A dot inside a name would let one setting be given twice.
        if (strchr(item->string, '.'))
            return error_set(err, "%s: '%.100s' has a dot; write nested objects instead", where,
                             item->string);
        if (!check_unique(object, item, key, where, err)) return false;
        const Setting *s = setting_find(key);
        if (s) {
            if (!set_value(c, s, item, where, err)) return false;
        } else if (!setting_is_section(key)) {
            return setting_unknown(key, where, err);
        } else if (!cJSON_IsObject(item)) {
            return error_set(err, "%s: %s should be an object with settings in it", where, key);
        } else if (!set_object(c, item, key, where, err)) {
            return false;
        }
    }
    return true;
}

bool config_parse(Config *c, const char *json, const char *where, Error *err) {
    size_t n = strlen(json);
    if (n > MAX_BYTES)
        return error_set(err, "%s: larger than the %d bytes allowed", where, MAX_BYTES);
    cJSON *root = parse_object(json, n, where, err);
    if (!root) return false;
    Config read;
    config_default(&read);
    bool ok = cJSON_GetObjectItemCaseSensitive(root, "base")
                  ? error_set(err, "%s: base is allowed only in config files", where)
                  : set_object(&read, root, "", where, err);
    if (ok) *c = read;
    cJSON_Delete(root);
    return ok;
}

// --- files

// The files being read, from the innermost base to the file the user named.
typedef struct Reading {
    const struct Reading *by;
    const char *path;
    struct stat id;
    int depth;
} Reading;

static bool load(Config *c, const char *path, const Reading *by, Error *err);

static bool load_base(Config *c, const cJSON *root, const Reading *now, Error *err) {
    const cJSON *base = cJSON_GetObjectItemCaseSensitive(root, "base");
    if (!base) return true;
    if (!cJSON_IsString(base) || !*base->valuestring)
        return error_set(err, "%s: base should be the name of a config file", now->path);
    if (now->depth == MAX_BASES)
        return error_set(err, "%s: base leads through more than %d files", now->path, MAX_BASES);
    const char *slash = strrchr(now->path, '/');
    Buf path = {0};
    if (slash && *base->valuestring != '/')
        buf_printf(&path, "%.*s", (int)(slash + 1 - now->path), now->path);
    buf_printf(&path, "%s", base->valuestring);
    bool ok = load(c, path.text, now, err);
    buf_free(&path);
    return ok;
}

static bool load(Config *c, const char *path, const Reading *by, Error *err) {
    char *text;
    size_t n;
    if (!file_read(path, MAX_BYTES, &text, &n, err)) {
        if (!by) return false;
        Buf prefix = {0};
        buf_printf(&prefix, "%s: base", by->path);
        error_prefix(err, prefix.text);
        buf_free(&prefix);
        return false;
    }
    Reading now = {.by = by, .path = path, .depth = by ? by->depth + 1 : 0};
    bool ok = stat(path, &now.id) == 0 || error_set(err, "%s: cannot stat", path);
    for (const Reading *r = by; r && ok; r = r->by) {
        if (r->id.st_dev == now.id.st_dev && r->id.st_ino == now.id.st_ino)
            ok = error_set(err, "%s: base %s is already being read: the files go in a circle",
                           by->path, path);
    }
    cJSON *root = ok ? parse_object(text, n, path, err) : NULL;
    ok = root && load_base(c, root, &now, err) && set_object(c, root, "", path, err);
    cJSON_Delete(root);
    mem_free(text);
    return ok;
}

bool config_load(Config *c, const char *path, Error *err) {
    Config read;
    config_default(&read);
    if (!load(&read, path, NULL, err)) return false;
    *c = read;
    return true;
}

// --- settings to JSON

static void add_json_text(Buf *out, const char *text) {
    buf_printf(out, "\"");
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p == '"' || *p == '\\')
            buf_printf(out, "\\%c", *p);
        else if (*p < ' ')
            buf_printf(out, "\\u%04x", *p);
        else
            buf_add(out, p, 1);
    }
    buf_printf(out, "\"");
}

// How many leading bytes of a and b are the same sections, up to and with the last common dot.
static size_t common_sections(const char *a, const char *b) {
    size_t n = 0;
    for (size_t i = 0; a[i] && a[i] == b[i]; i++) {
        if (a[i] == '.') n = i + 1;
    }
    return n;
}

static int count_dots(const char *text) {
    int n = 0;
    for (; *text; text++)
        n += *text == '.';
    return n;
}

static void new_line(Buf *out, int depth) {
    buf_printf(out, "\n%*s", 2 * (depth + 1), "");
}

char *config_print(const Config *c) {
    Buf out = {0};
    buf_printf(&out, "{");
    const char *before = "";
    for (int i = 0; i < config_table_n; i++) {
        const Setting *s = &config_table[i];
        if (!setting_in_use(s, c) && setting_is_default(s, c)) continue;
        size_t same = common_sections(before, s->key);
        // Close the sections that end, open those that begin.
        int shared = 0, depth = count_dots(before);
        for (size_t k = 0; k < same; k++)
            shared += before[k] == '.';
        for (; depth > shared; depth--) {
            new_line(&out, depth - 1);
            buf_printf(&out, "}");
        }
        const char *name = s->key + same;
        buf_printf(&out, "%s", *before ? "," : "");
        for (size_t n; name[n = strcspn(name, ".")]; name += n + 1, depth++) {
            new_line(&out, depth);
            buf_printf(&out, "\"%.*s\": {", (int)n, name);
        }
        new_line(&out, depth);
        buf_printf(&out, "\"%s\": ", name);
        if (setting_is_text(s))
            add_json_text(&out, setting_text(s, c));
        else {
            const char *quote = s->type == SETTING_WORD ? "\"" : "";
            buf_printf(&out, "%s", quote);
            setting_format(&out, s, c);
            buf_printf(&out, "%s", quote);
        }
        before = s->key;
    }
    for (int depth = count_dots(before); depth > 0; depth--) {
        new_line(&out, depth - 1);
        buf_printf(&out, "}");
    }
    buf_printf(&out, "\n}\n");
    return out.text;
}
