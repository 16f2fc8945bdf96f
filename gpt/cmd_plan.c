// cmd_plan.c - train_gpt plan: what a config costs, before anything is allocated.
#include "gpt/plan.h"
#include "gpt/run.h"

#include <string.h>

typedef struct PlanCommand {
    int64_t gpus;
    double tokens_per_second;
    bool tensors, json;
    const char *device;
} PlanCommand;

enum { N_OPTIONS = 5 };

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

static bool plan_one(Plan *plan, const PlanCommand *o, const Program *p, const char *path,
                     const CommandLine *line, Error *err) {
    Config c;
    if (!config_open(&c, path, line->setting, line->n_settings, err)) return false;
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

// One config in full, several as a table.
static bool run(const PlanCommand *o, const Program *p, const CommandLine *line, Error *err) {
    char *names[ARGUMENTS_MAX];
    Plan *plans = mem_alloc((size_t)line->n_subjects, sizeof *plans);
    int made = 0;
    bool ok = true;
    for (; ok && made < line->n_subjects; made += ok) {
        ok = plan_one(&plans[made], o, p, line->subject[made], line, err);
        if (ok) names[made] = short_name(line->subject[made]);
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
    mem_free(plans);
    return ok;
}

int plan_main(const Program *p, int argc, char **argv, bool help) {
    PlanCommand o = {.gpus = 1, .device = "auto"};
    Option table[N_OPTIONS];
    options(table, &o);
    CommandLine line = {.options = table,
                        .n_options = N_OPTIONS,
                        .expects = "plan expects a config file, and settings to override if any",
                        .many = true};
    int status;
    if (!command_line(&line, argc, argv, help, &status)) return status;
    Error err = {0};
    return run(&o, p, &line, &err) ? 0 : command_failed(&err, 1);
}
