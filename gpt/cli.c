// cli.c - see cli.h.
#include "gpt/cli.h"

#include <assert.h>
#include <string.h>

enum { OPTIONS_MAX = 64 };

static const Option *find(const Option *options, int n, const char *arg, size_t length) {
    for (int i = 0; i < n; i++) {
        const Option *o = &options[i];
        if (strlen(o->name) == length && strncmp(o->name, arg, length) == 0) return o;
        if (o->letter && strlen(o->letter) == length && strncmp(o->letter, arg, length) == 0)
            return o;
    }
    return NULL;
}

static bool unknown(const Option *options, int n, const char *arg, Error *err) {
    const char *names[OPTIONS_MAX];
    assert(n <= OPTIONS_MAX);
    for (int i = 0; i < n; i++)
        names[i] = options[i].name;
    const char *near = str_nearest(arg, names, n);
    if (near) return error_set(err, "unknown option %s; did you mean %s?", arg, near);
    return error_set(err, "unknown option %s; help lists the options", arg);
}

static bool take_int(const Option *o, const char *text, Error *err) {
    int64_t v;
    if (!parse_i64(text, &v) || !((double)v >= o->min && (double)v <= o->max)) {
        return error_set(err, "%s expects an integer from %.0f to %.15g, found '%s'", o->name,
                         o->min, o->max, text);
    }
    *(int64_t *)o->value = v;
    return true;
}

static bool take_real(const Option *o, const char *text, Error *err) {
    double v;
    if (!parse_f64(text, &v) || !(v >= o->min && v <= o->max)) {
        return error_set(err, "%s expects a number from %g to %g, found '%s'", o->name, o->min,
                         o->max, text);
    }
    *(double *)o->value = v;
    return true;
}

static bool take(const Option *o, const char *text, Error *err) {
    switch (o->type) {
    case OPT_FLAG:
        return error_set(err, "%s takes no value, found '%s'", o->name, text);
    case OPT_INT:
        return take_int(o, text, err);
    case OPT_REAL:
        return take_real(o, text, err);
    case OPT_TEXT:
        *(const char **)o->value = text;
        return true;
    case OPT_LIST: {
        OptionList *list = o->value;
        if (list->n == OPTION_LIST_MAX) {
            return error_set(err, "%s may be given at most %d times", o->name, OPTION_LIST_MAX);
        }
        list->text[list->n++] = text;
        return true;
    }
    }
    return false;
}

bool cli_parse(int argc, char **argv, const Option *options, int n, const char **rest, int rest_max,
               int *n_rest, Error *err) {
    bool only_rest = false;
    *n_rest = 0;
    for (int i = 0; i < argc; i++) {
        const char *arg = argv[i];
        if (only_rest || arg[0] != '-' || !arg[1]) {
            if (*n_rest == rest_max) return error_set(err, "unexpected argument '%s'", arg);
            rest[(*n_rest)++] = arg;
            continue;
        }
        if (strcmp(arg, "--") == 0) {
            only_rest = true;
            continue;
        }
        const char *equals = arg[1] == '-' ? strchr(arg, '=') : NULL;
        const Option *o = find(options, n, arg, equals ? (size_t)(equals - arg) : strlen(arg));
        if (!o) return unknown(options, n, arg, err);
        if (equals) {
            if (!take(o, equals + 1, err)) return false;
        } else if (o->type == OPT_FLAG) {
            *(bool *)o->value = true;
        } else if (i + 1 == argc) {
            return error_set(err, "%s expects %s behind it", o->name, o->what);
        } else if (!take(o, argv[++i], err)) {
            return false;
        }
    }
    return true;
}

void cli_help(FILE *out, const Option *options, int n) {
    for (int i = 0; i < n; i++) {
        const Option *o = &options[i];
        char left[64];
        snprintf(left, sizeof left, "%s%s%s%s%s", o->letter ? o->letter : "", o->letter ? ", " : "",
                 o->name, o->what ? " " : "", o->what ? o->what : "");
        fprintf(out, "  %-28s %s", left, o->help);
        const char *text = o->type == OPT_TEXT ? *(const char **)o->value : NULL;
        if (o->type == OPT_INT) fprintf(out, " [%lld]", (long long)*(int64_t *)o->value);
        if (o->type == OPT_REAL) fprintf(out, " [%g]", *(double *)o->value);
        if (text && *text) fprintf(out, " [%s]", text);
        fputc('\n', out);
    }
}
