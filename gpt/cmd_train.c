// cmd_train.c - train_gpt train.
#include "gpt/run.h"
#include "gpt/train.h"

#include <string.h>

enum { N_OPTIONS = 3 };

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
    CommandLine line = {
        .options = table,
        .n_options = N_OPTIONS,
        .expects = "train expects a config file; configs/demo.json is one",
        .note = "Without options a run goes on from its newest checkpoint when checkpoint.dir "
                "holds one.\n"
                "Settings are overridden as section.field=value; train_gpt help config lists "
                "them.\n"};
    int status;
    if (!command_line(&line, argc, argv, help, &status)) return status;
    Error err = {0};
    Config c;
    bool ok = config_open(&c, line.subject[0], line.setting, line.n_settings, &err);
    const Ops *ops = ok ? program_ops(p, device, (ElemType)c.train.compute, &err) : NULL;
    RunStart start = aside ? RUN_FRESH_ASIDE : fresh ? RUN_FRESH : RUN_RESUME;
    ok = ops && train_run(&c, ops, start, &err);
    return ok ? 0 : command_failed(&err, 1);
}
