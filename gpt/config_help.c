// config_help.c - help texts and the comparison of two configs, both straight from the table.
#include "gpt/config_table.h"

#include <string.h>

static bool asked_for(const char *key, const char *section) {
    if (!section) return true;
    size_t n = strlen(section);
    return strncmp(key, section, n) == 0 && (key[n] == 0 || key[n] == '.');
}

static void help_line(FILE *out, const Setting *s) {
    Config initial;
    config_default(&initial);
    Buf text = {0};
    setting_format(&text, s, &initial);
    if (setting_is_text(s) && s->type == SETTING_TEXT) buf_printf(&text, "\"");
    fprintf(out, "  %s = %s%s\n", s->key, s->type == SETTING_TEXT ? "\"" : "", text.text);
    text.n = 0;
    setting_expected(&text, s);
    fprintf(out, "      %s\n      %s", s->help, text.text);
    if (s->needs_key) fprintf(out, "; used with %s %s", s->needs_key, s->needs_words);
    fprintf(out, "%s\n", s->fixed ? "; fixed once a run has begun" : "");
    buf_free(&text);
}

static void help_variants(FILE *out) {
    fprintf(out, "\n");
    for (int i = 0; attention_table[i]; i++)
        fprintf(out, "      %-6s %s\n", attention_table[i]->name, attention_table[i]->summary);
    fprintf(out, "\n");
}

bool config_help(FILE *out, const char *section, Error *err) {
    bool found = false;
    for (int i = 0; i < config_table_n; i++) {
        const Setting *s = &config_table[i];
        if (!asked_for(s->key, section)) continue;
        found = true;
        help_line(out, s);
        if (s->type == SETTING_VARIANT) help_variants(out);
    }
    return found || setting_unknown(section, "help", err);
}

static int diff(const Config *a, const Config *b, bool fixed, Buf *out) {
    int n = 0;
    for (int i = 0; i < config_table_n; i++) {
        const Setting *s = &config_table[i];
        if (s->fixed != fixed || setting_equal(s, a, b)) continue;
        buf_printf(out, "%s%s ", n++ ? ", " : "", s->key);
        setting_format(out, s, a);
        buf_printf(out, " -> ");
        setting_format(out, s, b);
    }
    return n;
}

int config_diff(const Config *a, const Config *b, Buf *out) {
    return diff(a, b, true, out);
}

int config_diff_free(const Config *a, const Config *b, Buf *out) {
    return diff(a, b, false, out);
}
