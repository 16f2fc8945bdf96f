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

static bool run(const PlanCommand *o, const Program *p, const char *const *rest, int n,
                Error *err) {
    Config c;
    if (!config_load(&c, rest[0], err)) return false;
    for (int i = 1; i < n; i++) {
        if (!config_override(&c, rest[i], err)) return false;
    }
    if (!config_finish(&c, err)) return error_prefix(err, rest[0]);
    const Ops *ops = program_ops(p, o->device, (ElemType)c.train.compute, err);
    Plan plan;
    if (!ops || !plan_compute(&plan, &c, ops, (int)o->gpus, o->tokens_per_second, err))
        return false;
    if (o->json) {
        char *text = plan_json(&plan);
        fputs(text, stdout);
        mem_free(text);
    } else {
        plan_print(stdout, &plan, o->tensors);
    }
    plan_free(&plan);
    return true;
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
    return run(&o, p, rest, n_rest, &err) ? 0 : command_failed(&err, 1);
}
