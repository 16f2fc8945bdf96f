// tokenizer_json.c - reads Hugging Face's tokenizer.json where it describes a byte-level BPE.
// What would change ids or text and is not implemented here is refused, never skipped: normalisers,
// other models, other splitting, dropout, prefixes. A post-processor only adds tokens such as a
// start token around a whole input; that is the caller's business here.
#include "gpt/tokenizer_vocab.h"

#include <string.h>

static const cJSON *get(const cJSON *object, const char *key) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsNull(item) ? NULL : item;
}

static bool is_type(const cJSON *object, const char *type) {
    const cJSON *item = get(object, "type");
    return cJSON_IsString(item) && !strcmp(item->valuestring, type);
}

static const char *type_of(const cJSON *object) {
    const cJSON *item = get(object, "type");
    return cJSON_IsString(item) ? item->valuestring : "without a type";
}

// --- pre_tokenizer

static bool byte_level_read(const cJSON *p, bool *use_regex, const char *where, Error *err) {
    if (!json_keys_unique(p, "pre_tokenizer", where, err)) return false;
    const cJSON *regex = get(p, "use_regex");
    // Both flags are true when they are not given.
    if (!cJSON_IsFalse(get(p, "add_prefix_space"))) {
        return error_set(err,
                         "%s: pre_tokenizer.add_prefix_space must be false, a space put before "
                         "the text is not supported",
                         where);
    }
    *use_regex = !cJSON_IsFalse(regex);
    return true;
}

static bool split_read(const cJSON *p, SplitKind *kind, const char *where, Error *err) {
    if (!json_keys_unique(p, "pre_tokenizer", where, err)) return false;
    const cJSON *regex = get(get(p, "pattern"), "Regex");
    const cJSON *behavior = get(p, "behavior");
    const char *how = cJSON_IsString(behavior) ? behavior->valuestring : "";
    bool invert = cJSON_IsTrue(get(p, "invert"));
    if (!cJSON_IsString(regex)) {
        return error_set(err, "%s: pre_tokenizer Split has no pattern.Regex", where);
    }
    // These patterns match all of a text, so keeping the matches only is the same.
    if (strcmp(how, "Isolated") && !(invert && !strcmp(how, "Removed"))) {
        return error_set(err,
                         "%s: pre_tokenizer Split with behavior '%.40s' is not supported, only "
                         "Isolated",
                         where, how);
    }
    if (split_from_regex(regex->valuestring, kind)) return true;
    return error_set(err,
                     "%s: the splitting pattern '%.300s' is not one of the known ones (GPT-2's "
                     "and GPT-4's)",
                     where, regex->valuestring);
}

static bool pre_tokenizer_read(const cJSON *p, SplitKind *kind, const char *where, Error *err) {
    bool use_regex = false;
    if (is_type(p, "ByteLevel")) {
        if (!byte_level_read(p, &use_regex, where, err)) return false;
        *kind = SPLIT_GPT2;
        return use_regex || error_set(err,
                                      "%s: pre_tokenizer does not split the text, which is not "
                                      "supported",
                                      where);
    }
    const cJSON *parts = get(p, "pretokenizers");
    if (!is_type(p, "Sequence") || !cJSON_IsArray(parts) || cJSON_GetArraySize(parts) != 2 ||
        !is_type(parts->child, "Split") || !is_type(parts->child->next, "ByteLevel")) {
        return error_set(err,
                         "%s: pre_tokenizer must be ByteLevel or Sequence [Split, ByteLevel], "
                         "found %.40s",
                         where, type_of(p));
    }
    if (!split_read(parts->child, kind, where, err) ||
        !byte_level_read(parts->child->next, &use_regex, where, err)) {
        return false;
    }
    return !use_regex || error_set(err,
                                   "%s: ByteLevel splits by use_regex behind Split, which is not "
                                   "supported",
                                   where);
}

// --- model

// A key that must be absent, null, false, 0 or "".
static bool must_be_off(const cJSON *object, const char *key, const char *where, Error *err) {
    const cJSON *item = get(object, key);
    bool off = !item || cJSON_IsFalse(item) || (cJSON_IsNumber(item) && item->valuedouble == 0) ||
               (cJSON_IsString(item) && !*item->valuestring);
    return off || error_set(err, "%s: model.%s is set, which is not supported", where, key);
}

static bool merges_read(const cJSON *list, VocabText *v, Error *err) {
    if (!cJSON_IsArray(list)) return error_set(err, "%s: model.merges is missing", v->where);
    v->merges = mem_alloc((size_t)cJSON_GetArraySize(list), sizeof *v->merges);
    const cJSON *item;
    cJSON_ArrayForEach(item, list) {
        MergeText *m = &v->merges[v->n_merges++];
        const cJSON *left = cJSON_IsArray(item) ? item->child : NULL,
                    *right = left ? left->next : NULL;
        if (cJSON_IsString(item)) {
            if (merge_text_split(item->valuestring, strlen(item->valuestring), m)) continue;
        } else if (cJSON_IsString(left) && cJSON_IsString(right) && !right->next) {
            *m = (MergeText){left->valuestring, right->valuestring, strlen(left->valuestring),
                             strlen(right->valuestring)};
            continue;
        }
        return error_set(err, "%s: merge %d is neither \"left right\" nor [\"left\", \"right\"]",
                         v->where, v->n_merges);
    }
    return true;
}

static bool model_read(const cJSON *model, VocabText *v, Error *err) {
    if (!cJSON_IsObject(model)) return error_set(err, "%s: there is no object 'model'", v->where);
    if (!json_keys_unique(model, "model", v->where, err)) return false;
    if (get(model, "type") && !is_type(model, "BPE")) {
        return error_set(err, "%s: model.type must be BPE, found %.40s", v->where, type_of(model));
    }
    static const char *const off[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix",
                                      "byte_fallback"};
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++) {
        if (!must_be_off(model, off[i], v->where, err)) return false;
    }
    v->vocab = get(model, "vocab");
    v->ignore_merges = cJSON_IsTrue(get(model, "ignore_merges"));
    if (!cJSON_IsObject(v->vocab))
        return error_set(err, "%s: there is no object 'model.vocab'", v->where);
    return merges_read(get(model, "merges"), v, err);
}

// --- The whole file

static bool top_read(const cJSON *json, VocabText *v, Error *err) {
    if (!json_keys_unique(json, "the file", v->where, err)) return false;
    static const char *const off[] = {"normalizer", "truncation", "padding"};
    for (size_t i = 0; i < 3; i++) {
        const cJSON *item = get(json, off[i]);
        if (!item) continue;
        return error_set(err, "%s: %s must be null, found %.40s, which is not supported", v->where,
                         off[i], type_of(item));
    }
    const cJSON *decoder = get(json, "decoder");
    if (decoder && !is_type(decoder, "ByteLevel")) {
        return error_set(err, "%s: decoder must be ByteLevel, found %.40s", v->where,
                         type_of(decoder));
    }
    v->added = get(json, "added_tokens");
    if (v->added && !cJSON_IsArray(v->added)) {
        return error_set(err, "%s: added_tokens must be a list", v->where);
    }
    return pre_tokenizer_read(get(json, "pre_tokenizer"), &v->split, v->where, err) &&
           model_read(get(json, "model"), v, err);
}

Tokenizer *tokenizer_from_json(const char *text, size_t n, const char *where, Error *err) {
    cJSON *json = json_object_parse(text, n, where, err);
    if (!json) return NULL;
    VocabText v = {.where = where};
    Tokenizer *tok = top_read(json, &v, err) ? tokenizer_from_vocab(&v, err) : NULL;
    mem_free(v.merges);
    cJSON_Delete(json);
    return tok;
}
