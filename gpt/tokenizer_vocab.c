// tokenizer_vocab.c - see tokenizer_vocab.h.
#include "gpt/tokenizer_vocab.h"

#include "gpt/rng.h"

#include <string.h>

// cJSON's strings end at a NUL, so a key or token that holds one would be cut without a word.
static bool holds_nul(const char *text, size_t n) {
    if (memchr(text, 0, n)) return true;
    for (size_t i = 0; i + 6 <= n; i++) {
        if (text[i] != '\\') continue;
        if (!memcmp(text + i, "\\u0000", 6)) return true;
        i++;
    }
    return false;
}

cJSON *json_object_parse(const char *text, size_t n, const char *where, Error *err) {
    const char *end = NULL;
    if (holds_nul(text, n)) {
        error_set(err, "%s: holds a NUL character, which a tokenizer file has no use for", where);
        return NULL;
    }
    cJSON *json = cJSON_ParseWithLengthOpts(text, n, &end, 0);
    while (json && end < text + n && strchr(" \t\r\n", *end))
        end++;
    if (cJSON_IsObject(json) && end == text + n) return json;
    size_t at = end && end > text ? (size_t)(end - text) : 0;
    cJSON_Delete(json);
    error_set(err, "%s: is not a JSON object (reading stopped at byte %zu of %zu)", where, at, n);
    return NULL;
}

bool json_keys_unique(const cJSON *object, const char *what, const char *where, Error *err) {
    int n = 0;
    const cJSON *a, *b;
    cJSON_ArrayForEach(a, object) {
        if (++n > 1000) return error_set(err, "%s: %s has more than 1000 keys", where, what);
        for (b = object->child; b != a; b = b->next) {
            if (!strcmp(a->string, b->string)) {
                return error_set(err, "%s: duplicate key '%.100s' in %s", where, a->string, what);
            }
        }
    }
    return true;
}

bool merge_text_split(const char *text, size_t n, MergeText *out) {
    const char *space = memchr(text, ' ', n);
    if (!space) return false;
    size_t n_left = (size_t)(space - text), n_right = n - n_left - 1;
    if (!n_left || !n_right || memchr(space + 1, ' ', n_right)) return false;
    *out = (MergeText){text, space + 1, n_left, n_right};
    return true;
}

// --- Token text to id

typedef struct VocabMap {
    const cJSON **slots;  // (mask + 1)
    size_t mask;
    Buf joined;  // reused for the text of a merge's result
} VocabMap;

static const cJSON **map_slot(const VocabMap *map, const char *text, size_t n) {
    size_t i = (size_t)rng_mix(rng_fnv(RNG_FNV_START, text, n)) & map->mask;
    for (; map->slots[i]; i = (i + 1) & map->mask) {
        const char *key = map->slots[i]->string;
        if (!strncmp(key, text, n) && !key[n]) break;
    }
    return &map->slots[i];
}

static int map_find(const VocabMap *map, const char *text, size_t n) {
    const cJSON *item = *map_slot(map, text, n);
    return item ? (int)item->valuedouble : -1;
}

static bool is_id(const cJSON *item) {
    double v = cJSON_IsNumber(item) ? item->valuedouble : -1;
    return v >= 0 && v < TOKENIZER_MAX_IDS && v == (double)(int)v;
}

static bool map_fill(VocabMap *map, const VocabText *v, int *n_ids, Error *err) {
    size_t n = 0, slots = 64;
    const cJSON *item;
    cJSON_ArrayForEach(item, v->vocab) n++;
    while (slots < 2 * n)
        slots *= 2;
    map->slots = mem_alloc(slots, sizeof *map->slots);
    map->mask = slots - 1;
    cJSON_ArrayForEach(item, v->vocab) {
        const char *key = item->string;
        if (!*key) return error_set(err, "%s: the vocabulary has an empty token", v->where);
        if (!is_id(item)) {
            return error_set(err, "%s: the id of the token '%.100s' is not a whole number in 0..%d",
                             v->where, key, TOKENIZER_MAX_IDS - 1);
        }
        const cJSON **slot = map_slot(map, key, strlen(key));
        if (*slot)
            return error_set(err, "%s: the token '%.100s' stands there twice", v->where, key);
        *slot = item;
        *n_ids = max_int(*n_ids, (int)item->valuedouble + 1);
    }
    return true;
}

// --- Added tokens

static bool flag_refused(const cJSON *token, const char *flag) {
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(token, flag));
}

static bool added_check(const cJSON *token, const VocabText *v, const VocabMap *map, int *n_ids,
                        Error *err) {
    if (!json_keys_unique(token, "an added token", v->where, err)) return false;
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(token, "content");
    const cJSON *id = cJSON_GetObjectItemCaseSensitive(token, "id");
    if (!cJSON_IsString(content) || !*content->valuestring || !is_id(id)) {
        return error_set(err, "%s: an added token lacks a text 'content' or an 'id' in 0..%d",
                         v->where, TOKENIZER_MAX_IDS - 1);
    }
    static const char *const refused[] = {"single_word", "lstrip", "rstrip"};
    for (size_t i = 0; i < 3; i++) {
        if (!flag_refused(token, refused[i])) continue;
        return error_set(err, "%s: the added token '%.100s' has %s true, which is not supported",
                         v->where, content->valuestring, refused[i]);
    }
    int known = map_find(map, content->valuestring, strlen(content->valuestring));
    if (known >= 0 && known != (int)id->valuedouble) {
        return error_set(err,
                         "%s: the added token '%.100s' has the id %d, but %d in the vocabulary",
                         v->where, content->valuestring, (int)id->valuedouble, known);
    }
    *n_ids = max_int(*n_ids, (int)id->valuedouble + 1);
    return true;
}

// The added token comes first: its text is what it says, not text in the byte alphabet.
static bool added_put(Tokenizer *tok, const cJSON *token, const VocabText *v, const VocabMap *map,
                      Error *err) {
    const char *text = cJSON_GetObjectItemCaseSensitive(token, "content")->valuestring;
    bool special = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(token, "special"));
    size_t n = strlen(text);
    int flags = TOKEN_ADDED | (special ? TOKEN_SPECIAL : 0);
    Buf bytes = {0};
    bool same = alphabet_read(text, n, &bytes) && bytes.n == n && !memcmp(bytes.text, text, n);
    buf_free(&bytes);
    // A special token is not looked for among pieces, unless it is a byte that text needs.
    if (same && map_find(map, text, n) >= 0 && (!special || n == 1)) flags |= TOKEN_MODEL;
    int id = (int)cJSON_GetObjectItemCaseSensitive(token, "id")->valuedouble;
    return tokenizer_put(tok, id, text, n, flags, v->where, err);
}

static bool vocab_put(Tokenizer *tok, const cJSON *item, const VocabText *v, Error *err) {
    int id = (int)item->valuedouble;
    size_t n = strlen(item->string);
    if (tok->len[id] && (tok->flags[id] & TOKEN_ADDED) && (size_t)tok->len[id] == n &&
        !memcmp(tok->text.text + tok->start[id], item->string, n)) {
        return true;
    }
    Buf bytes = {0};
    bool native = alphabet_read(item->string, n, &bytes);
    bool ok = native ? tokenizer_put(tok, id, bytes.text, bytes.n, TOKEN_MODEL, v->where, err)
                     : tokenizer_put(tok, id, item->string, n, TOKEN_FOREIGN, v->where, err);
    buf_free(&bytes);
    return ok;
}

// --- Merges

static bool merges_resolve(const VocabText *v, VocabMap *map, Merge *merges, Error *err) {
    for (int i = 0; i < v->n_merges; i++) {
        const MergeText *m = &v->merges[i];
        map->joined.n = 0;
        buf_add(&map->joined, m->left, m->n_left);
        buf_add(&map->joined, m->right, m->n_right);
        merges[i].left = map_find(map, m->left, m->n_left);
        merges[i].right = map_find(map, m->right, m->n_right);
        merges[i].out = map_find(map, map->joined.text, map->joined.n);
        if (merges[i].left >= 0 && merges[i].right >= 0 && merges[i].out >= 0) continue;
        return error_set(
            err, "%s: merge %d ('%.*s' and '%.*s') needs a token that is not in the vocabulary",
            v->where, i + 1, (int)min_size(m->n_left, 60), m->left, (int)min_size(m->n_right, 60),
            m->right);
    }
    return true;
}

static bool merges_needed(const Tokenizer *tok) {
    for (int id = 0; id < tok->n_ids; id++) {
        if (tok->len[id] > 1 && (tok->flags[id] & TOKEN_MODEL) && !(tok->flags[id] & TOKEN_ADDED))
            return true;
    }
    return false;
}

static Tokenizer *vocab_build(const VocabText *v, VocabMap *map, Error *err) {
    int n_ids = 0;
    const cJSON *item;
    if (!map_fill(map, v, &n_ids, err)) return NULL;
    cJSON_ArrayForEach(item, v->added) {
        if (!added_check(item, v, map, &n_ids, err)) return NULL;
    }
    if (!n_ids) {
        error_set(err, "%s: the vocabulary is empty", v->where);
        return NULL;
    }
    Tokenizer *tok = tokenizer_new(v->split, n_ids);
    tok->ignore_merges = v->ignore_merges;
    Merge *merges = mem_alloc((size_t)v->n_merges, sizeof *merges);
    bool ok = true;
    cJSON_ArrayForEach(item, v->added) ok = ok && added_put(tok, item, v, map, err);
    cJSON_ArrayForEach(item, v->vocab) ok = ok && vocab_put(tok, item, v, err);
    ok = ok && merges_resolve(v, map, merges, err);
    if (ok && !v->n_merges && merges_needed(tok)) {
        ok = error_set(err, "%s: there are no merges, but tokens of more than one byte", v->where);
    }
    if (ok) return tokenizer_finish(tok, merges, v->n_merges, v->where, err);
    mem_free(merges);
    tokenizer_free(tok);
    return NULL;
}

Tokenizer *tokenizer_from_vocab(const VocabText *v, Error *err) {
    VocabMap map = {0};
    Tokenizer *tok = vocab_build(v, &map, err);
    mem_free(map.slots);
    buf_free(&map.joined);
    return tok;
}
