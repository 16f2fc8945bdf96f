// run.c - see run.h.
#define _DEFAULT_SOURCE
#include "gpt/run.h"

#include "gpt/config.h"

#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
    #include <omp.h>
#endif

typedef struct Command {
    const char *name, *usage, *summary;
    CommandMain *main;
} Command;

static const Command commands[] = {
    {"prepare", "text... --tokenizer train:N --out DIR", "text -> tokenizer and token shards",
     prepare_command},
    {"train", "CONFIG.json [section.field=value ...]", "train, or go on from the run's checkpoint",
     train_main},
    {"eval", "RUN --data PATH", "loss, perplexity and bits per byte", eval_main},
    {"generate", "RUN --prompt TEXT", "text from a model, with its KV cache", generate_main},
    {"plan", "CONFIG.json...", "parameters, FLOPs, memory and cache; allocates nothing", plan_main},
    {"bench", "[CONFIG.json]", "speed of this machine and of the program on it", bench_main},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

int command_failed(const Error *err, int status) {
    fflush(stdout);
    fprintf(stderr, "train_gpt: %s\n", err->text);
    return status;
}

static const Command *find(const char *name) {
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    }
    return NULL;
}

static int overview(FILE *out) {
    fprintf(
        out,
        "train_gpt - GPT training and inference with MHA, MQA, GQA, MLA and LRKV attention\n\n");
    for (int i = 0; i < N_COMMANDS; i++) {
        fprintf(out, "  train_gpt %-9s %s\n%23s%s\n", commands[i].name, commands[i].usage, "",
                commands[i].summary);
    }
    fprintf(
        out,
        "\n  train_gpt help COMMAND    its options\n"
        "  train_gpt help SECTION    settings of model, attention, data, batch, optim, schedule,\n"
        "                            train, checkpoint, log, generate (help config: all)\n");
    return 0;
}

static const char *nearest_command(const char *name) {
    const char *names[N_COMMANDS];
    for (int i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i].name;
    return str_nearest(name, names, N_COMMANDS);
}

static int unknown(const char *name) {
    const char *near = nearest_command(name);
    Error err;
    error_set(&err, "unknown command '%s'%s%s%s", name, near ? "; did you mean " : "",
              near ? near : "", near ? "?" : "; train_gpt help lists them");
    return command_failed(&err, 2);
}

static int command_help(const Program *p, const Command *c) {
    printf("train_gpt %s %s\n  %s\n\n", c->name, c->usage, c->summary);
    return c->main(p, 0, NULL, true);
}

static int help(const Program *p, int argc, char **argv) {
    if (argc == 0) return overview(stdout);
    const Command *c = find(argv[0]);
    if (c) return command_help(p, c);
    const char *section = strcmp(argv[0], "config") == 0 ? NULL : argv[0];
    Error err;
    if (config_help(stdout, section, &err)) return 0;
    return nearest_command(argv[0]) ? unknown(argv[0]) : command_failed(&err, 2);
}

int gpt_main(int argc, char **argv, const Program *p) {
    if (argc < 2) {
        overview(stderr);
        return 2;
    }
    const char *name = argv[1];
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        return help(p, argc - 2, argv + 2);
    }
    const Command *c = find(name);
    if (!c) return unknown(name);
    for (int i = 2; i < argc && strcmp(argv[i], "--"); i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return command_help(p, c);
    }
    return c->main(p, argc - 2, argv + 2, false);
}

const Ops *program_ops(const Program *p, const char *device, ElemType act, Error *err) {
    bool any = strcmp(device, "auto") == 0;
    for (int i = 0; i < p->n_devices; i++) {
        if (!any && strcmp(p->devices[i].name, device)) continue;
        const Ops *ops = p->devices[i].open(act, err);
        if (ops || !any) return ops;
        if (i + 1 < p->n_devices) warn("%s; using the %s", err->text, p->devices[i + 1].name);
    }
    if (any) return NULL;
    Buf names = {0};
    for (int i = 0; i < p->n_devices; i++)
        buf_printf(&names, "%s%s", i ? ", " : "", p->devices[i].name);
    error_set(err, "--device %s: this program was built for %s", device, names.text);
    buf_free(&names);
    return NULL;
}

// Whether each setting exists and takes its value.
static bool check_settings(const CommandLine *c, Error *err) {
    Config any;
    config_default(&any);
    for (int i = 0; i < c->n_settings; i++) {
        if (!config_override(&any, c->setting[i], err)) return false;
    }
    return true;
}

static bool read_line(CommandLine *c, int argc, char **argv, Error *err) {
    const char *rest[ARGUMENTS_MAX];
    int n;
    if (!cli_parse(argc, argv, c->options, c->n_options, rest, ARGUMENTS_MAX, &n, err))
        return false;
    for (int i = 0; i < n; i++) {
        if (c->many ? !strchr(rest[i], '=') : i == 0)
            c->subject[c->n_subjects++] = rest[i];
        else
            c->setting[c->n_settings++] = rest[i];
    }
    if (c->expects && c->n_subjects == 0) return error_set(err, "%s", c->expects);
    return check_settings(c, err);
}

bool command_line(CommandLine *c, int argc, char **argv, bool help_wanted, int *status) {
    Error err;
    *status = 0;
    if (help_wanted) {
        cli_help(stdout, c->options, c->n_options);
        if (c->note) printf("\n%s", c->note);
        return false;
    }
    if (read_line(c, argc, argv, &err)) return true;
    *status = command_failed(&err, 2);
    return false;
}

#ifdef _OPENMP
// Threads that wait by spinning keep the processor from those they wait for where other programs
// want it too: small models then run at a tenth of their speed and less.
static void warn_of_load(void) {
    double load;
    if (omp_get_max_threads() == 1 || getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    if (getloadavg(&load, 1) != 1 || load <= 1.5 * omp_get_num_procs()) return;
    warn("other programs keep this machine busy (load %.1f on %d processors): with "
         "OMP_WAIT_POLICY=passive in the environment threads wait without taking part in that",
         load, omp_get_num_procs());
}
#endif

void program_threads(int n) {
#ifdef _OPENMP
    if (n > 0) omp_set_num_threads(n);
    warn_of_load();
#else
    if (n > 1) warn("built without OpenMP: train.threads %d has no effect", n);
#endif
}
