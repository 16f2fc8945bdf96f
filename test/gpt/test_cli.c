// test_cli.c - gpt/cli: options in every spelling, their ranges, what is left over, and one
// sentence for each mistake.
#define _POSIX_C_SOURCE 200809L
#include "gpt/cli.h"
#include "test/test.h"

#include <stdlib.h>
#include <string.h>

typedef struct Values {
    bool flag;
    int64_t count;
    double real;
    const char *text;
    OptionList list;
} Values;

enum { N_OPTIONS = 5, REST_MAX = 3 };

static void make_options(Option *out, Values *v) {
    *v = (Values){.count = 7, .real = 0.5, .text = "auto"};
    const Option rows[N_OPTIONS] = {
        {"--fresh", "-f", OPT_FLAG, &v->flag, 0, 0, NULL, "start anew"},
        {"--count", "-n", OPT_INT, &v->count, -1, 100, "N", "how many"},
        {"--top-p", NULL, OPT_REAL, &v->real, 0, 1, "P", "share"},
        {"--device", NULL, OPT_TEXT, &v->text, 0, 0, "NAME", "where"},
        {"--stop", NULL, OPT_LIST, &v->list, 0, 0, "TEXT", "end before"},
    };
    memcpy(out, rows, sizeof rows);
}

typedef struct Parsed {
    Values v;
    const char *rest[REST_MAX];
    int n_rest;
    bool ok;
    Error err;
} Parsed;

static Parsed parse(const char *const *args) {
    Parsed p = {.ok = false};
    Option options[N_OPTIONS];
    int n = 0;
    make_options(options, &p.v);
    while (args[n])
        n++;
    p.ok = cli_parse(n, (char **)(void *)args, options, N_OPTIONS, p.rest, REST_MAX, &p.n_rest,
                     &p.err);
    return p;
}
#define PARSE(...) parse((const char *const[]){__VA_ARGS__, NULL})

static void no_arguments_leave_the_defaults(TestCtx *t) {
    Parsed p = parse((const char *const[]){NULL});
    CHECK(t, p.ok && p.n_rest == 0 && !p.v.flag && p.v.count == 7 && p.v.real == 0.5);
    CHECK(t, strcmp(p.v.text, "auto") == 0 && p.v.list.n == 0);
}

static void options_are_taken_in_every_spelling(TestCtx *t) {
    Parsed p = PARSE("--count", "5", "--top-p=0.25", "--fresh", "--device", "cuda", "--stop", "a",
                     "--stop=b=c", "--stop", "");
    CHECK_MSG(t, p.ok, "%s", p.err.text);
    CHECK(t, p.v.flag && p.v.count == 5 && p.v.real == 0.25 && !strcmp(p.v.text, "cuda"));
    CHECK(t, p.v.list.n == 3 && !strcmp(p.v.list.text[1], "b=c") && !*p.v.list.text[2]);
    p = PARSE("-f", "-n", "-1");
    CHECK(t, p.ok && p.v.flag && p.v.count == -1);
    p = PARSE("--count=100", "--count", "-0");  // the last one counts
    CHECK(t, p.ok && p.v.count == 0);
    p = PARSE("--device", "--fresh");  // a value may look like an option
    CHECK(t, p.ok && !p.v.flag && !strcmp(p.v.text, "--fresh"));
}

static void what_is_no_option_is_left_in_order(TestCtx *t) {
    Parsed p = PARSE("runs/a", "--fresh", "model.x=3", "-");
    CHECK(t, p.ok && p.n_rest == 3 && p.v.flag);
    CHECK(t, !strcmp(p.rest[0], "runs/a") && !strcmp(p.rest[1], "model.x=3"));
    CHECK(t, !strcmp(p.rest[2], "-"));
    p = PARSE("--", "--fresh", "--");
    CHECK(t, p.ok && p.n_rest == 2 && !p.v.flag && !strcmp(p.rest[0], "--fresh") &&
                 !strcmp(p.rest[1], "--"));
    p = PARSE("");
    CHECK(t, p.ok && p.n_rest == 1);
}

static void mistakes_are_sentences(TestCtx *t) {
    static const struct {
        const char *args[3], *words;
    } cases[] = {
        {{"--cuont", "3"}, "unknown option --cuont; did you mean --count?"},
        {{"--quite-another"}, "unknown option --quite-another; help lists the options"},
        {{"-x"}, "unknown option -x"},
        {{"--coun"}, "unknown option --coun"},
        {{"-n=3"}, "unknown option -n=3"},
        {{"--fresh=yes"}, "--fresh takes no value, found 'yes'"},
        {{"--count"}, "--count expects N behind it"},
        {{"-n"}, "--count expects N behind it"},
        {{"--device"}, "--device expects NAME behind it"},
        {{"--count", "101"}, "--count expects an integer from -1 to 100, found '101'"},
        {{"--count", "-2"}, "--count expects an integer from -1 to 100, found '-2'"},
        {{"--count", "5x"}, "found '5x'"},
        {{"--count", ""}, "found ''"},
        {{"--count", "0.5"}, "found '0.5'"},
        {{"--count", "99999999999999999999"}, "found '99999999999999999999'"},
        {{"--top-p", "nan"}, "--top-p expects a number from 0 to 1, found 'nan'"},
        {{"--top-p", "inf"}, "found 'inf'"},
        {{"--top-p", "1e999"}, "found '1e999'"},
        {{"--top-p", "1.0001"}, "found '1.0001'"},
        {{"--top-p", "-0.1"}, "found '-0.1'"},
        {{"--top-p", "x"}, "found 'x'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Parsed p = parse(cases[i].args);
        CHECK_MSG(t, !p.ok, "%s was accepted", cases[i].args[0]);
        CHECK_ERROR(t, p.err, cases[i].words);
    }
}

static void too_many_are_refused(TestCtx *t) {
    Parsed p = PARSE("a", "b", "c");
    CHECK(t, p.ok);
    p = PARSE("a", "b", "c", "d");
    CHECK(t, !p.ok);
    CHECK_ERROR(t, p.err, "unexpected argument 'd'");
    const char *args[OPTION_LIST_MAX + 2] = {NULL};
    for (int i = 0; i < OPTION_LIST_MAX; i++)
        args[i] = "--stop=x";
    p = parse(args);
    CHECK(t, p.ok && p.v.list.n == OPTION_LIST_MAX);
    args[OPTION_LIST_MAX] = "--stop=x";
    p = parse(args);
    CHECK(t, !p.ok);
    CHECK_ERROR(t, p.err, "--stop may be given at most 16 times");
}

static void help_shows_every_option_with_its_default(TestCtx *t) {
    Values v;
    Option options[N_OPTIONS];
    char *text = NULL;
    size_t n;
    make_options(options, &v);
    FILE *f = open_memstream(&text, &n);
    cli_help(f, options, N_OPTIONS);
    fclose(f);
    static const char *const want[] = {"-f, --fresh ", "-n, --count N", "how many [7]",
                                       "--top-p P",    "share [0.5]",   "--device NAME",
                                       "where [auto]", "--stop TEXT"};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        CHECK_MSG(t, strstr(text, want[i]), "'%s' is missing in\n%s", want[i], text);
    int lines = 0;
    for (const char *p = text; *p; p++)
        lines += *p == '\n';
    CHECK(t, lines == N_OPTIONS);
    free(text);
}

TEST_MAIN({"no_arguments_leave_the_defaults", no_arguments_leave_the_defaults},
          {"options_are_taken_in_every_spelling", options_are_taken_in_every_spelling},
          {"what_is_no_option_is_left_in_order", what_is_no_option_is_left_in_order},
          {"mistakes_are_sentences", mistakes_are_sentences},
          {"too_many_are_refused", too_many_are_refused},
          {"help_shows_every_option_with_its_default", help_shows_every_option_with_its_default})
