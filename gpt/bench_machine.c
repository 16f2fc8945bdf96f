// bench_machine.c - what the system tells about itself: processor, threads, resident memory.
// Reads Linux' /proc where there is one and gets along without it.
#include "gpt/bench.h"

#include <string.h>
#include <time.h>
#ifdef _OPENMP
    #include <omp.h>
#endif

// The text behind "key :" in a file of such lines.
static bool proc_line(const char *path, const char *key, char *out, size_t size) {
    FILE *f = fopen(path, "r");
    char line[256];
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        size_t n = strlen(key);
        if (strncmp(line, key, n) || !strchr(" \t:", line[n])) continue;
        const char *value = line + n + strspn(line + n, " \t:");
        snprintf(out, size, "%.*s", (int)strcspn(value, "\n"), value);
        found = true;
    }
    if (f) fclose(f);
    return found;
}

void bench_cpu_name(char *out, size_t size) {
    if (!proc_line("/proc/cpuinfo", "model name", out, size)) snprintf(out, size, "unknown");
}

int bench_threads(void) {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

// man 5 proc: writing 5 resets VmHWM.
bool bench_rss_reset(void) {
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f) return false;
    bool ok = fputs("5\n", f) >= 0;
    return fclose(f) == 0 && ok;
}

size_t bench_rss_peak(void) {
    char text[64];
    int64_t kib;
    if (!proc_line("/proc/self/status", "VmHWM", text, sizeof text)) return peak_rss_bytes();
    text[strcspn(text, " \t")] = 0;
    return parse_i64(text, &kib) ? (size_t)kib * 1024 : peak_rss_bytes();
}

double bench_processor_seconds(void) {
    return (double)clock() / CLOCKS_PER_SEC;
}

double bench_processor_share(const BenchTimes *t) {
    return bench_share(t->processor, bench_total(t) * bench_threads());
}
