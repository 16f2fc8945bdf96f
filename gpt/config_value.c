// config_value.c - one setting of one Config: find its row, read it, check it, write it, print it.
// Knows rows and values; files, JSON and combinations of settings are elsewhere.
#define _POSIX_C_SOURCE 200809L
#include "gpt/config_table.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAMES = 64 };

const Setting *setting_find(const char *key) {
    for (int i = 0; i < config_table_n; i++) {
        if (strcmp(config_table[i].key, key) == 0) return &config_table[i];
    }
    return NULL;
}

static bool lies_in(const char *key, const char *prefix, size_t n) {
    return strncmp(key, prefix, n) == 0 && key[n] == '.';
}

bool setting_is_section(const char *prefix) {
    size_t n = strlen(prefix);
    for (int i = 0; n && i < config_table_n; i++) {
        if (lies_in(config_table[i].key, prefix, n)) return true;
    }
    return false;
}

// --- unknown keys

// Names that may follow the section key[0..n), or begin a key when n = 0; freed by the caller.
static int section_names(char **names, const char *section, size_t n) {
    int count = 0;
    for (int i = 0; i < config_table_n; i++) {
        const char *key = config_table[i].key;
        if (n && !lies_in(key, section, n)) continue;
        const char *name = n ? key + n + 1 : key;
        size_t len = strcspn(name, ".");
        bool known = false;
        for (int j = 0; j < count; j++)
            known = known || (strlen(names[j]) == len && strncmp(names[j], name, len) == 0);
        if (known) continue;
        assert(count < MAX_NAMES);
        char *copy = mem_alloc(len + 1, 1);
        memcpy(copy, name, len);
        names[count++] = copy;
    }
    return count;
}

// The key of another section whose last part is `leaf`, or NULL.
static const char *same_name_elsewhere(const char *leaf) {
    for (int i = 0; i < config_table_n; i++) {
        if (strcmp(strrchr(config_table[i].key, '.') + 1, leaf) == 0) return config_table[i].key;
    }
    return NULL;
}

bool setting_unknown(const char *key, const char *where, Error *err) {
    // The longest section that exists; what follows it is the unknown name.
    size_t n = 0;
    char *section = str_copy(key);
    for (size_t i = strlen(key); i > 0 && !n; i--) {
        if (key[i] != '.') continue;
        section[i] = 0;
        if (setting_is_section(section)) n = i;
    }
    char *names[MAX_NAMES];
    int count = section_names(names, key, n);
    char *wrong = str_copy(n ? key + n + 1 : key);
    const char *dot = strrchr(wrong, '.');
    const char *elsewhere = same_name_elsewhere(dot ? dot + 1 : wrong);
    wrong[strcspn(wrong, ".")] = 0;
    const char *near = str_nearest(wrong, (const char *const *)names, count);
    Buf hint = {0};
    if (elsewhere)
        buf_printf(&hint, "did you mean %s?", elsewhere);
    else if (near && n)
        buf_printf(&hint, "did you mean %.*s.%s?", (int)n, key, near);
    else if (near)
        buf_printf(&hint, "did you mean %s?", near);
    else {
        buf_printf(&hint, "%s%.*s has", n ? "" : "the config", (int)n, key);
        for (int i = 0; i < count; i++)
            buf_printf(&hint, "%s %s", i ? "," : "", names[i]);
    }
    error_set(err, "%s: unknown setting %.100s; %s", where, key, hint.text);
    for (int i = 0; i < count; i++)
        mem_free(names[i]);
    mem_free(section);
    mem_free(wrong);
    buf_free(&hint);
    return false;
}

// --- plain reads and writes

bool setting_is_text(const Setting *s) {
    return s->type == SETTING_TEXT || s->type == SETTING_VARIANT;
}

double setting_number(const Setting *s, const Config *c) {
    const char *at = (const char *)c + s->offset;
    switch (s->type) {
    case SETTING_BOOL:
        return *(const bool *)at;
    case SETTING_INT:
    case SETTING_WORD:
        return *(const int *)(const void *)at;
    case SETTING_I64:
        return (double)*(const int64_t *)(const void *)at;
    case SETTING_F64:
        return *(const double *)(const void *)at;
    default:
        assert(!"a text has no number");
        return 0;
    }
}

const char *setting_text(const Setting *s, const Config *c) {
    assert(setting_is_text(s));
    return (const char *)c + s->offset;
}

void setting_store(const Setting *s, Config *c, double value) {
    char *at = (char *)c + s->offset;
    switch (s->type) {
    case SETTING_BOOL:
        *(bool *)at = value != 0;
        break;
    case SETTING_INT:
    case SETTING_WORD:
        *(int *)(void *)at = (int)value;
        break;
    case SETTING_I64:
        *(int64_t *)(void *)at = (int64_t)value;
        break;
    case SETTING_F64:
        *(double *)(void *)at = value;
        break;
    default:
        assert(!"a text has no number");
    }
}

// The whole field is written, so that configs with equal settings are equal in memory.
static void store_text(const Setting *s, Config *c, const char *text) {
    char *at = (char *)c + s->offset;
    memset(at, 0, s->size);
    memcpy(at, text, strlen(text));
}

void setting_default(const Setting *s, Config *c) {
    if (setting_is_text(s))
        store_text(s, c, s->initial_text);
    else
        setting_store(s, c, s->initial);
}

bool setting_equal(const Setting *s, const Config *a, const Config *b) {
    if (setting_is_text(s)) return strcmp(setting_text(s, a), setting_text(s, b)) == 0;
    return setting_number(s, a) == setting_number(s, b);
}

bool setting_is_default(const Setting *s, const Config *c) {
    if (setting_is_text(s)) return strcmp(setting_text(s, c), s->initial_text) == 0;
    return setting_number(s, c) == s->initial;
}

bool setting_in_use(const Setting *s, const Config *c) {
    if (!s->needs_key) return true;
    Buf now = {0};
    setting_format(&now, setting_find(s->needs_key), c);
    bool found = false;
    for (const char *w = s->needs_words; *w && !found;) {
        size_t n = strcspn(w, "|");
        found = strlen(now.text) == n && strncmp(now.text, w, n) == 0;
        w += n + (w[n] == '|');
    }
    buf_free(&now);
    return found;
}

// --- checked writes

static void add_choices(Buf *out, const Setting *s, const char *between) {
    if (s->type == SETTING_VARIANT) {
        for (int i = 0; attention_table[i]; i++)
            buf_printf(out, "%s%s", i ? between : "", attention_table[i]->name);
    } else {
        for (int i = 0; s->words[i].word; i++)
            buf_printf(out, "%s%s", i ? between : "", s->words[i].word);
    }
}

static void add_range(Buf *out, const Setting *s) {
    const char *low = s->open & OPEN_MIN ? "above " : s->open ? "at least " : "from ";
    const char *high = s->open & OPEN_MAX ? ", below " : s->open ? ", at most " : " to ";
    buf_printf(out, "%s", low);
    buf_number(out, s->min);
    buf_printf(out, "%s", high);
    buf_number(out, s->max);
}

void setting_expected(Buf *out, const Setting *s) {
    switch (s->type) {
    case SETTING_BOOL:
        buf_printf(out, "true or false");
        break;
    case SETTING_INT:
    case SETTING_I64:
        buf_printf(out, "an integer ");
        add_range(out, s);
        break;
    case SETTING_F64:
        buf_printf(out, "a number ");
        add_range(out, s);
        break;
    case SETTING_WORD:
    case SETTING_VARIANT:
        buf_printf(out, "one of ");
        add_choices(out, s, ", ");
        break;
    case SETTING_TEXT:
        buf_printf(out, "a text of at most %zu bytes", s->size - 1);
        break;
    }
}

bool setting_refuse(const Setting *s, const char *where, const char *found, Error *err) {
    Buf expected = {0};
    setting_expected(&expected, s);
    error_set(err, "%s: %s should be %s, found %s", where, s->key, expected.text, found);
    buf_free(&expected);
    return false;
}

static bool refuse_number(const Setting *s, double value, const char *where, Error *err) {
    Buf found = {0};
    buf_number(&found, value);
    setting_refuse(s, where, found.text, err);
    buf_free(&found);
    return false;
}

static bool refuse_text(const Setting *s, const char *text, const char *where, Error *err) {
    Buf found = {0};
    size_t n = strlen(text);
    // A file's bytes go to a terminal here: no control characters, no megabytes.
    buf_printf(&found, "'");
    for (size_t i = 0; i < n && i < 60; i++)
        buf_add(&found, (unsigned char)text[i] < ' ' || text[i] == 127 ? "?" : text + i, 1);
    buf_printf(&found, "%s'", n > 60 ? "..." : "");
    setting_refuse(s, where, found.text, err);
    buf_free(&found);
    return false;
}

bool setting_set_number(const Setting *s, Config *c, double value, const char *where, Error *err) {
    if (s->type == SETTING_BOOL || s->type == SETTING_WORD || setting_is_text(s))
        return refuse_number(s, value, where, err);
    bool low = s->open & OPEN_MIN ? value > s->min : value >= s->min;
    bool high = s->open & OPEN_MAX ? value < s->max : value <= s->max;
    if (!(low && high)) return refuse_number(s, value, where, err);
    if (s->type != SETTING_F64 && value != floor(value)) return refuse_number(s, value, where, err);
    setting_store(s, c, value + 0.0);  // -0 becomes 0
    return true;
}

bool setting_set_text(const Setting *s, Config *c, const char *text, const char *where,
                      Error *err) {
    if (s->type == SETTING_WORD) {
        for (int i = 0; s->words[i].word; i++) {
            if (strcmp(s->words[i].word, text)) continue;
            setting_store(s, c, s->words[i].value);
            return true;
        }
    } else if (setting_is_text(s)) {
        bool known = s->type == SETTING_TEXT || attention_find(text);
        if (known && strlen(text) < s->size) {
            store_text(s, c, text);
            return true;
        }
    }
    return refuse_text(s, text, where, err);
}

// --- printing

void buf_number(Buf *out, double x) {
    // Whole numbers in full: 100000 rather than 1e+05.
    if (x == floor(x) && fabs(x) < 9007199254740992.0) {
        buf_printf(out, "%.0f", x);
        return;
    }
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x) break;
    }
    buf_printf(out, "%s", text);
}

void setting_format(Buf *out, const Setting *s, const Config *c) {
    if (setting_is_text(s)) {
        buf_printf(out, "%s", setting_text(s, c));
        return;
    }
    double value = setting_number(s, c);
    if (s->type == SETTING_BOOL)
        buf_printf(out, "%s", value != 0 ? "true" : "false");
    else if (s->type != SETTING_WORD)
        buf_number(out, value);
    else {
        int i = 0;
        while (s->words[i].word && s->words[i].value != (int)value)
            i++;
        assert(s->words[i].word);
        buf_printf(out, "%s", s->words[i].word);
    }
}
