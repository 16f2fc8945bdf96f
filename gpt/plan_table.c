// plan_table.c - several plans side by side: what an attention variant costs and saves.
#include "gpt/plan.h"

static void head(FILE *out, const Plan *first) {
    fprintf(out, "%-16s %-5s %10s %9s %8s %10s %12s %12s\n", "config", "type", "parameters",
            "MFLOP/tok", "values/", "share of", "cache bytes", "MiB for");
    fprintf(out, "%-16s %-5s %10s %9s %8s %10s %12s %6d tokens\n", "", "", "(M)", "(train)",
            "tok/layer", "mha", "a token", first->cfg.model.seq_len);
}

void plan_print_table(FILE *out, const Plan *plans, const char *const *names, int n) {
    head(out, &plans[0]);
    for (int i = 0; i < n; i++) {
        const Plan *p = &plans[i];
        fprintf(out, "%-16s %-5s %10.1f %9.1f %8zu %9.1f%% %12zu %12.1f\n", names[i],
                p->cfg.attention.type, (double)p->parameters / 1e6, p->flops.causal / 1e6,
                p->cache.values, 100 * p->cache.share_of_mha,
                p->cache.token_layer_bytes * (size_t)p->cfg.model.n_layer,
                (double)p->cache.sequence_allocated / (1 << 20));
    }
}
