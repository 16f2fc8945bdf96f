// cmd_plan.c - train_gpt plan: what a config costs, before anything is allocated.
#include "gpt/cli.h"
#include "gpt/plan.h"
#include "gpt/run.h"

#include <string.h>

typedef struct PlanCommand {
    int64_t gpus;
    double tokens_per_second;
    bool tensors, json;
    const char *device;
} PlanCommand;

enum { N_OPTIONS = 5, REST_MAX = 64 };

static void options(Option *out, PlanCommand *o) {
    const Option rows[N_OPTIONS] = {
        {"--gpus", NULL, OPT_INT, &o->gpus, 1, 65536, "N", "processes that share a step's tokens"},
        {"--tokens-per-second", NULL, OPT_REAL, &o->tokens_per_second, 0, 1e12, "R",
         "measured speed of all processes, for the time of the run; 0: none"},
        {"--tensors", NULL, OPT_FLAG, &o->tensors, 0, 0, NULL, "a line for every tensor"},
        {"--device", NULL, OPT_TEXT, &o->device, 0, 0, "NAME", "auto, cpu or cuda"},
        {"--json", NULL, OPT_FLAG, &o->json, 0, 0, NULL, "the result as one JSON object"},
    };
    memcpy(out, rows, sizeof rows);
}

// The config in `path` with the overrides, planned.
static bool plan_one(Plan *plan, const PlanCommand *o, const Program *p, const char *path,
                     const char *const *overrides, int n, Error *err) {
    Config c;
    if (!config_load(&c, path, err)) return false;
    for (int i = 0; i < n; i++) {
        if (!config_override(&c, overrides[i], err)) return false;
    }
    if (!config_finish(&c, err)) return error_prefix(err, path);
    const Ops *ops = program_ops(p, o->device, (ElemType)c.train.compute, err);
    return ops && plan_compute(plan, &c, ops, (int)o->gpus, o->tokens_per_second, err);
}

static void print_json(const Plan *plans, int n) {
    if (n > 1) putchar('[');
    for (int i = 0; i < n; i++) {
        char *text = plan_json(&plans[i]);
        printf("%s%s", i ? ", " : "", text);
        mem_free(text);
    }
    if (n > 1) puts("]");
}

// "128m-lrkv" of "configs/128m-lrkv.json"; the caller frees it.
static char *short_name(const char *path) {
    const char *base = strrchr(path, '/');
    char *name = str_copy(base ? base + 1 : path), *dot = strstr(name, ".json");
    if (dot) *dot = 0;
    return name;
}

// One config in full, several as a table; what holds a '=' is a setting for all of them.
static bool run(const PlanCommand *o, const Program *p, const char *const *rest, int n,
                Error *err) {
    const char *configs[REST_MAX], *settings[REST_MAX];
    char *names[REST_MAX];
    Plan plans[REST_MAX];
    int n_configs = 0, n_settings = 0, made = 0;
    for (int i = 0; i < n; i++) {
        if (strchr(rest[i], '='))
            settings[n_settings++] = rest[i];
        else
            configs[n_configs++] = rest[i];
    }
    if (n_configs == 0) return error_set(err, "plan expects a config file before its settings");
    bool ok = true;
    for (; ok && made < n_configs; made += ok) {
        ok = plan_one(&plans[made], o, p, configs[made], settings, n_settings, err);
        if (ok) names[made] = short_name(configs[made]);
    }
    if (ok && o->json)
        print_json(plans, made);
    else if (ok && made == 1)
        plan_print(stdout, &plans[0], o->tensors);
    else if (ok)
        plan_print_table(stdout, plans, (const char *const *)names, made);
    for (int i = 0; i < made; i++) {
        plan_free(&plans[i]);
        mem_free(names[i]);
    }
    return ok;
}

int plan_main(const Program *p, int argc, char **argv, bool help) {
    PlanCommand o = {.gpus = 1, .device = "auto"};
    Option table[N_OPTIONS];
    options(table, &o);
    if (help) {
        cli_help(stdout, table, N_OPTIONS);
        return 0;
    }
    Error err = {0};
    const char *rest[REST_MAX];
    int n_rest;
    if (!cli_parse(argc, argv, table, N_OPTIONS, rest, REST_MAX, &n_rest, &err))
        return command_failed(&err, 2);
    if (n_rest == 0) {
        error_set(&err, "plan expects a config file, and settings to override if any");
        return command_failed(&err, 2);
    }
    for (int i = 0; i < n_rest; i++) {
        if (strchr(rest[i], '=') && !program_overrides(&rest[i], 1, &err))
            return command_failed(&err, 2);
    }
    return run(&o, p, rest, n_rest, &err) ? 0 : command_failed(&err, 1);
}
