// cmd_train.c - train_gpt train.
#include "gpt/cli.h"
#include "gpt/run.h"
#include "gpt/train.h"

#include <string.h>

enum { N_OPTIONS = 3, REST_MAX = 128 };

int train_main(const Program *p, int argc, char **argv, bool help) {
    const char *device = "auto";
    bool fresh = false, aside = false;
    const Option table[N_OPTIONS] = {
        {"--fresh", NULL, OPT_FLAG, &fresh, 0, 0, NULL,
         "start at step 0; refuses a directory that holds a run"},
        {"--fresh-aside", NULL, OPT_FLAG, &aside, 0, 0, NULL,
         "start at step 0; an earlier run is moved to NAME.old-K"},
        {"--device", NULL, OPT_TEXT, &device, 0, 0, "NAME", "auto, cpu or cuda"},
    };
    if (help) {
        cli_help(stdout, table, N_OPTIONS);
        printf(
            "\nWithout options a run goes on from its newest checkpoint when checkpoint.dir holds "
            "one.\n"
            "Settings are overridden as section.field=value; train_gpt help config lists them.\n");
        return 0;
    }
    Error err = {0};
    const char *rest[REST_MAX];
    int n;
    if (!cli_parse(argc, argv, table, N_OPTIONS, rest, REST_MAX, &n, &err))
        return command_failed(&err, 2);
    if (n == 0) {
        error_set(&err, "train expects a config file; configs/demo.json is one");
        return command_failed(&err, 2);
    }
    if (!program_overrides(rest + 1, n - 1, &err)) return command_failed(&err, 2);
    Config c;
    bool ok = config_load(&c, rest[0], &err);
    for (int i = 1; ok && i < n; i++)
        ok = config_override(&c, rest[i], &err);
    ok = ok && config_finish(&c, &err);
    const Ops *ops = ok ? program_ops(p, device, (ElemType)c.train.compute, &err) : NULL;
    RunStart start = aside ? RUN_FRESH_ASIDE : fresh ? RUN_FRESH : RUN_RESUME;
    ok = ops && train_run(&c, ops, start, &err);
    return ok ? 0 : command_failed(&err, 1);
}
