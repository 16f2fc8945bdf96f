// ops_cpu.c - picks the op table of the best instruction set that was compiled and that this
// processor has. The Makefile defines HAVE_ISA_<set> for each set it compiles. The choice follows
// from the processor alone: with a timing in it, two runs of one config could differ in their bits.
#include <stdlib.h>
#include <string.h>

#include "gpt/util.h"
#include "kernels/ops.h"

static bool processor_has(const char *isa) {
    if (strcmp(isa, "base") == 0) return true;
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (strcmp(isa, "avx2") == 0) return avx2;
    if (strcmp(isa, "avx512") == 0) return avx512;
    if (strcmp(isa, "avx512bf16") == 0) return avx512 && __builtin_cpu_supports("avx512bf16");
#endif
    return false;
}

// Sets from the plainest to the best.
#define ISA_SETS(X)      X(base) X(avx2) X(avx512) X(avx512bf16)
#define ISA_DECLARE(set) const Ops *ops_cpu_table_##set(void);
ISA_SETS(ISA_DECLARE)

typedef struct Set {
    const char *name;
    const Ops *(*table)(void);
} Set;

static const Set sets[] = {
#ifdef HAVE_ISA_base
    {"base", ops_cpu_table_base},
#endif
#ifdef HAVE_ISA_avx2
    {"avx2", ops_cpu_table_avx2},
#endif
#ifdef HAVE_ISA_avx512
    {"avx512", ops_cpu_table_avx512},
#endif
#ifdef HAVE_ISA_avx512bf16
    {"avx512bf16", ops_cpu_table_avx512bf16},
#endif
};
enum { N_SETS = sizeof sets / sizeof sets[0] };

const Ops *ops_cpu_isa(const char *isa) {
    for (int i = 0; i < N_SETS; i++) {
        if (strcmp(sets[i].name, isa) == 0 && processor_has(isa)) return sets[i].table();
    }
    return NULL;
}

// Whether set i has everything that the set before it has and is slower all the same. AMD does the
// dot product of bf16 pairs in one step (Zen 5, 2 cores: 896 GFLOP/s, fp32 448). Intel's cores
// without AMX in use do not (Xeon, 2 cores: 174 GFLOP/s, fp32 373): there avx512, which widens bf16
// and multiplies in fp32, trains 128m-mha in bf16 at 245 tokens/s and avx512bf16 at 182.
static bool passed_over(int i) {
#if defined(__x86_64__)
    return i > 0 && strcmp(sets[i].name, "avx512bf16") == 0 &&
           strcmp(sets[i - 1].name, "avx512") == 0 && !__builtin_cpu_is("amd");
#else
    (void)i;
    return false;
#endif
}

const Ops *ops_cpu(void) {
    const char *wanted = getenv("TRAIN_GPT_ISA");
    if (wanted && *wanted) {
        const Ops *ops = ops_cpu_isa(wanted);
        if (ops) return ops;
        die("TRAIN_GPT_ISA=%s: this program was not compiled for that instruction set, or the "
            "processor lacks it; known sets are base, avx2, avx512 and avx512bf16",
            wanted);
    }
    for (int i = N_SETS - 1; i >= 0; i--) {
        if (processor_has(sets[i].name) && !passed_over(i)) return sets[i].table();
    }
    die("this processor has none of the instruction sets that the program was compiled for");
}
