// cli.h - the options of a subcommand as one table: parsing, ranges, defaults and help come from
// it.
#pragma once

#include "gpt/util.h"

typedef enum OptionType { OPT_FLAG, OPT_INT, OPT_REAL, OPT_TEXT, OPT_LIST } OptionType;

enum { OPTION_LIST_MAX = 16 };

typedef struct OptionList {
    const char *text[OPTION_LIST_MAX];
    int n;
} OptionList;

// value points to a bool, int64_t, double, const char * or OptionList that holds the default (texts
// point into argv). min..max bound numbers, both included.
typedef struct Option {
    const char *name;    // "--temperature"
    const char *letter;  // "-n", or NULL
    OptionType type;
    void *value;
    double min, max;
    const char *what;  // name of the value in help: "N", "FILE"; NULL for flags
    const char *help;
} Option;

// argv[0..argc) without the program's and the subcommand's name. `--name value` and `--name=value`
// are taken; what does not start with a dash (and "-" itself) stays in rest, in order, at most
// rest_max of them; after "--" everything does. Every complaint is one sentence; unknown options
// name the nearest.
bool cli_parse(int argc, char **argv, const Option *options, int n, const char **rest, int rest_max,
               int *n_rest, Error *err);

// One line for each option, with its default.
void cli_help(FILE *out, const Option *options, int n);
